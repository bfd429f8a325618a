"""A worker that a test can make misbehave, over the real worker port: `python fake_worker.py [fault]`.

It reads its few settings from the environment itself: it starts many times, and pydantic takes its time.
It answers each connection with its pid; a request for `/slow` takes `SLOW_S`. Faults: `crash` ends at start,
`mute` never opens its control socket, `stubborn` ignores SIGTERM, `busy` does something else `BUSY_S` at a time.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from sluicegate.edge.metrics import Metrics
from sluicegate.edge.supervisor.ports import bind_shared
from sluicegate.edge.worker_port import Readiness, follow_supervisor, serve_worker_port
from sluicegate.runtime.stopping import stop_event

SLOW_S = 1.5
BUSY_S = 1.2


async def main(fault: str) -> None:
    if fault == "crash":
        raise SystemExit(3)
    stop = asyncio.Event() if fault == "stubborn" else stop_event()
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    follow_supervisor(int(os.environ["SLUICEGATE_EDGE_SUPERVISOR_PID"]), grace_s=1.0)
    if fault == "mute":
        await stop.wait()
        return
    metrics = Metrics()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        metrics.in_flight += 1
        if b"/slow" in head:
            await asyncio.sleep(SLOW_S)
        metrics.in_flight -= 1
        metrics.count_request("chat_completions", 200, "success")
        body = str(os.getpid()).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    drains: list[int] = []
    async with serve_worker_port(
        Path(os.environ["SLUICEGATE_EDGE_CONTROL_SOCKET"]),
        metrics,
        lambda: Readiness(True, f"drained {len(drains)}"),
        lambda: drains.append(1),
    ):
        server = await asyncio.start_server(
            serve, sock=bind_shared("127.0.0.1", int(os.environ["SLUICEGATE_EDGE_PORT"]))
        )
        while fault == "busy" and not stop.is_set():
            time.sleep(BUSY_S)
            await asyncio.sleep(0)
        await stop.wait()
        server.close()
        while metrics.in_flight:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
