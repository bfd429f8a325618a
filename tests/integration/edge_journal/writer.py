"""A process that journals requests until it is killed: run by the tests, never imported.

Arguments: journal root, NATS URL, how often to pause (s) between requests. Writes `A <id>` and `F <id>`
to stdout after the journal took them. Every seventh request stays open.
"""

import asyncio
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import structlog

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.ids import uuid7_text
from sluicegate.contracts.usage import PriceOfInput, RequestAdmitted, UsageRecorded
from sluicegate.edge.journal.journal import Journal, JournalSettings


async def main(root: str, url: str, pause_s: float) -> None:
    connection = Connection("writer")
    opening = asyncio.create_task(connection.open(url))
    journal = Journal(
        Path(root),
        str(uuid.uuid4()),
        AckedPublisher(connection),
        JournalSettings(adopt_every_s=3600, rotate_bytes=65536),
    )
    await journal.start()
    os.write(1, b"READY\n")
    number = 0
    while not opening.cancelled():
        request_id, tenant, number = uuid7_text(), f"ten_{number % 3}", number + 1
        common: dict[str, Any] = {
            "request_id": request_id,
            "started_at_us": time.time_ns() // 1000,
            "tenant": tenant,
            "team": "tea_a",
            "key": "key_a",
            "endpoint": "/v1/chat/completions",
        }
        admitted = RequestAdmitted(**common, input_tokens=1000, price=PriceOfInput(version=7, input=2_500_000_000))
        journal.admitted(request_id, encode_event(admitted))
        os.write(1, f"A {request_id}\n".encode())
        if number % 7:
            journal.finished(request_id, tenant, encode_event(UsageRecorded(**common, status=200, outcome="success")))
            os.write(1, f"F {request_id}\n".encode())
        await asyncio.sleep(pause_s)


structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
