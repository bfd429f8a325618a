"""How many usage records one usage-writer process stores per second, and how many bytes each takes.

Starts PostgreSQL (durable: fsync on) and NATS of its own, fills the stream, then starts the writer and
watches its acknowledgements. `python benchmarks/micro/usage_writer.py --help`.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import nats.errors

from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.subjects import USAGE_WRITER
from sluicegate.devstack.servers import NatsServer, PostgresServer
from sluicegate.devstack.usage_events import messages, population
from sluicegate.store.migrations import migrate

TABLES = "usage", "usage_detail", "usage_rollup"


def process_cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


async def fill(connection: Connection, records: int, per_message: int, detail_share: float) -> int:
    """Publish the records; return the number of messages."""
    js = connection.jetstream()
    sent = 0
    for subject, body in messages(list(population(records, detail_share=detail_share)), per_message):
        await js.publish(subject, body)
        sent += 1
    return sent


async def watch(connection: Connection, writer: subprocess.Popen[bytes], last: int) -> dict[str, float]:
    """Return the time and CPU between the first and the last acknowledgement seen."""
    js = connection.jetstream()
    first = None
    while True:
        try:
            info = await js.consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
        except (nats.errors.Error, TimeoutError):
            continue
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        now = time.perf_counter(), process_cpu_s(writer.pid), floor
        if first is None and floor:
            first = now
        if first is not None and floor >= last:
            break
        await asyncio.sleep(0.02)
    return {"share": 1 - first[2] / last, "seconds": now[0] - first[0], "cpu_seconds": now[1] - first[1]}


async def sizes(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            """
            SELECT root::text AS name, sum(pg_total_relation_size(relid))::bigint AS bytes
            FROM unnest($1::text[]) AS root, pg_partition_tree(root::regclass)
            GROUP BY 1
            """,
            list(TABLES),
        )
        plain = await connection.fetchval("SELECT pg_total_relation_size('usage_rollup')")
        count = await connection.fetchval("SELECT count(*) FROM usage")
        rollups = await connection.fetchval("SELECT count(*) FROM usage_rollup")
    finally:
        await connection.close()
    found = {row["name"]: row["bytes"] for row in rows}
    return {**found, "usage_rollup": plain, "records": count, "rollup_rows": rollups}


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    postgres = PostgresServer(folder / "postgres", is_durable=not options.fast)
    bus = NatsServer(folder / "nats")
    postgres.start()
    bus.start()
    try:
        dsn = postgres.dsn("usage")
        migrate(dsn)
        connection = await connect(bus.url, name="benchmark")
        await declare(connection.jetstream(), buckets=())
        sent = await fill(connection, options.records, options.per_message, options.detail_share)
        environment = os.environ | {
            "SLUICEGATE_NATS_URL": bus.url,
            "SLUICEGATE_POSTGRES_DSN": dsn,
            "SLUICEGATE_USAGE_WRITER_INTERNAL_PORT": "0",
            "SLUICEGATE_LOG_LEVEL": "warning",
        }
        writer = subprocess.Popen([sys.executable, "-m", "sluicegate.usage_writer"], env=environment)
        try:
            seen = await watch(connection, writer, sent)
        finally:
            writer.send_signal(signal.SIGTERM)
            writer.wait(30)
        await connection.close()
        stored = await sizes(dsn)
        counted = options.records * seen["share"]
        return {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "durable": not options.fast,
            "records": options.records,
            "per_message": options.per_message,
            "records_per_second": round(counted / seen["seconds"]),
            "writer_cpu_us_per_record": round(seen["cpu_seconds"] / counted * 1e6, 2),
            "bytes_per_record": {
                "usage": round(stored["usage"] / stored["records"], 1),
                "usage_and_detail": round((stored["usage"] + stored["usage_detail"]) / stored["records"], 1),
            },
            "rollup_rows": stored["rollup_rows"],
            "rollup_bytes": stored["usage_rollup"],
            "records_stored": stored["records"],
        }
    finally:
        bus.stop()
        postgres.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--per-message", type=int, default=100)
    parser.add_argument("--detail-share", type=float, default=0.02)
    parser.add_argument("--fast", action="store_true", help="PostgreSQL without fsync")
    parser.add_argument("--out", type=Path, help="write the result there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        Path(folder).chmod(0o711)
        result = asyncio.run(measure(options, Path(folder)))
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
