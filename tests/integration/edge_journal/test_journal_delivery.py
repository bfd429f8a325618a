"""The journal against a real NATS: what was finished arrives, whatever dies, restarts or forgets in between."""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.ids import uuid7_text
from sluicegate.contracts.usage import PriceOfInput, RequestAdmitted, UsageRecorded
from sluicegate.devstack.servers import NatsServer
from sluicegate.edge.journal.journal import Journal, JournalSettings

WRITER = Path(__file__).with_name("writer.py")
QUICK = JournalSettings(adopt_every_s=0.2, check_stream_every_s=0.2)


async def until(condition: Callable[[], bool], deadline_s: float = 30) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def bring_back(server: NatsServer, connection: Connection) -> None:
    """Start a killed server and wait for the connection to be made again (it may not have noticed the end)."""
    reconnects = connection.stats["reconnects"]
    server.start()
    await until(lambda: connection.is_connected and connection.stats["reconnects"] > reconnects)
    await connection.flush(timeout=10)


def admission(request_id: str, tenant: str = "ten_a", **more: object) -> bytes:
    return encode_event(
        RequestAdmitted(
            request_id=request_id,
            started_at_us=time.time_ns() // 1000,
            tenant=tenant,
            team="tea_a",
            key="key_a",
            endpoint="/v1/chat/completions",
            **more,  # type: ignore[arg-type]
        )
    )


def event(request_id: str, tenant: str = "ten_a") -> bytes:
    return encode_event(
        UsageRecorded(
            request_id=request_id,
            started_at_us=time.time_ns() // 1000,
            tenant=tenant,
            team="tea_a",
            key="key_a",
            endpoint="/v1/chat/completions",
            status=200,
            outcome="success",
        )
    )


def journal_requests(journal: Journal, count: int, tenant: str = "ten_a") -> set[str]:
    ids = set()
    for _ in range(count):
        request_id = uuid7_text()
        journal.admitted(request_id, admission(request_id, tenant))
        journal.finished(request_id, tenant, event(request_id, tenant))
        ids.add(request_id)
    return ids


async def stored(url: str) -> list[UsageRecorded]:
    """Return all events in the stream, in order."""
    connection = await connect(url, name="reader")
    js = connection.jetstream()
    events: list[UsageRecorded] = []
    state = (await js.stream_info("USAGE")).state
    if state.messages:
        subscription = await js.subscribe("gateway.request.completed.*", ordered_consumer=True)
        for _ in range(state.messages):
            message = await subscription.next_msg(timeout=10)
            batch = msgspec.json.decode(message.data, type=list[UsageRecorded])
            assert {item.tenant for item in batch} == {message.subject.rpartition(".")[2]}
            assert message.headers is not None
            assert message.headers["Sluicegate-Schema"] == "request.completed.v1"
            assert len(batch) <= 500
            assert len(message.data) <= 256 * 1024
            events += batch
    await connection.close()
    return events


class Writer:
    """A process that journals until it is killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.admitted: set[str] = set()
        self.finished: set[str] = set()

    @classmethod
    async def start(cls, root: Path, url: str, pause_s: float = 0.0) -> "Writer":
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WRITER), str(root), url, str(pause_s), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        while (await asyncio.wait_for(process.stdout.readline(), 30)) != b"READY\n":
            assert process.returncode is None
        return cls(process)

    async def read(self, count: int | None = None) -> None:
        """Read `count` lines, or all until the process has ended."""
        assert self.process.stdout is not None
        while count is None or count > 0:
            line = (await self.process.stdout.readline()).decode()
            if not line.endswith("\n"):
                return
            kind, request_id = line.split()
            (self.admitted if kind == "A" else self.finished).add(request_id)
            if count is not None:
                count -= 1

    async def kill(self) -> None:
        self.process.kill()
        await self.read()
        await self.process.wait()


@pytest.fixture
def server(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    made = await connect(server.url, name="test")
    await declare(made.jetstream())
    yield made
    await made.close()


async def start_journal(root: Path, connection: Connection, settings: JournalSettings = QUICK) -> Journal:
    journal = Journal(root, str(uuid.uuid4()), AckedPublisher(connection), settings)
    await journal.start()
    return journal


async def test_finished_requests_arrive_in_batches_per_tenant(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection)
    ids = journal_requests(journal, 1200, "ten_a") | journal_requests(journal, 30, "ten_b")
    await until(lambda: journal.unacked_count == 0)
    events = await stored(server.url)
    assert Counter(item.request_id for item in events) == dict.fromkeys(ids, 1)
    assert journal.outbox.published_batches == 4
    await journal.close(5)


async def test_nothing_is_left_when_closed_with_everything_acknowledged(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection)
    ids = journal_requests(journal, 10)
    await journal.close(10)
    assert {item.request_id for item in await stored(server.url)} == ids
    assert list(tmp_path.iterdir()) == []


async def test_events_wait_and_are_published_when_nats_comes_back(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection)
    ids = journal_requests(journal, 100)
    await until(lambda: journal.unacked_count == 0)
    server.kill()
    await until(lambda: not connection.is_connected)
    for _ in range(20):
        ids |= journal_requests(journal, 200)
        journal._flush()
    assert journal.unacked_count == 4000
    assert journal.outbox._ready_bytes == 0
    server.start()
    await until(lambda: journal.unacked_count == 0)
    assert Counter(item.request_id for item in await stored(server.url)) == dict.fromkeys(ids, 1)
    await journal.close(5)


async def test_events_wait_when_nats_was_never_there(tmp_path: Path, server: NatsServer) -> None:
    later = Connection("late")
    journal = await start_journal(tmp_path, later)
    ids = journal_requests(journal, 50)
    journal._flush()
    await later.open(server.url)
    await asyncio.sleep(0.3)
    assert journal.unacked_count == 50
    await declare(later.jetstream())
    await until(lambda: journal.unacked_count == 0)
    assert {item.request_id for item in await stored(server.url)} == ids
    await journal.close(5)
    await later.close()


async def test_each_request_arrives_when_nats_restarts_while_publishing(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection)
    ids: set[str] = set()

    async def load() -> None:
        for _ in range(150):
            ids.update(journal_requests(journal, 40))
            await asyncio.sleep(0.02)

    loading = asyncio.create_task(load())
    for _ in range(3):
        published = journal.outbox.published_events
        await until(lambda: journal.outbox.published_events > published + 200 or loading.done())  # noqa: B023
        server.kill()
        server.start()
    await loading
    await until(lambda: journal.unacked_count == 0)
    counts = Counter(item.request_id for item in await stored(server.url))
    assert counts == dict.fromkeys(ids, 1)
    await journal.close(5)


async def test_stream_is_filled_again_when_it_was_wiped(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection, msgspec.structs.replace(QUICK, rotate_bytes=50_000))
    ids = journal_requests(journal, 500)
    journal._flush()
    ids |= journal_requests(journal, 300)
    await until(lambda: journal.unacked_count == 0)
    server.kill()
    server.wipe()
    ids |= journal_requests(journal, 200)
    await bring_back(server, connection)
    await declare(connection.jetstream())
    await until(lambda: journal.outbox.republished_events >= 800 and journal.unacked_count == 0)
    assert Counter(item.request_id for item in await stored(server.url)) == dict.fromkeys(ids, 1)
    await journal.close(5)


async def test_stream_is_filled_again_when_only_the_stream_was_deleted(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection)
    ids = journal_requests(journal, 100)
    await until(lambda: journal.unacked_count == 0)
    await connection.jetstream().delete_stream("USAGE")
    ids |= journal_requests(journal, 100)
    await declare(connection.jetstream())
    await until(lambda: journal.outbox.republished_events > 0 and journal.unacked_count == 0)
    assert {item.request_id for item in await stored(server.url)} == ids
    await journal.close(5)


async def test_full_stream_is_felt_here_and_forgets_nothing(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    js = connection.jetstream()
    config = (await js.stream_info("USAGE")).config
    await js.update_stream(config.evolve(max_msgs=1))
    journal = await start_journal(tmp_path, connection)
    ids = journal_requests(journal, 2000, "ten_a") | journal_requests(journal, 10, "ten_b")
    journal._flush()
    await until(lambda: journal.outbox._publisher.refused_count > 3)
    assert journal.unacked_count > 0
    await js.update_stream(config)
    await until(lambda: journal.unacked_count == 0)
    assert Counter(item.request_id for item in await stored(server.url)) == dict.fromkeys(ids, 1)
    await journal.close(5)


async def test_killed_process_has_one_event_per_request_after_adoption(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    writers = [await Writer.start(tmp_path, server.url) for _ in range(2)]
    for writer in writers:
        await writer.read(3000)
        await writer.kill()
    journal = await start_journal(tmp_path, connection)
    await until(lambda: journal.adoption.adopted_lives == 2)
    first: dict[str, UsageRecorded] = {}
    for item in await stored(server.url):
        first.setdefault(item.request_id, item)
    admitted = writers[0].admitted | writers[1].admitted
    finished = writers[0].finished | writers[1].finished
    # The last request of each may have been journalled and not yet told to us.
    assert admitted <= set(first)
    assert len(first) - len(admitted) <= 2
    assert {item.outcome for item in first.values() if item.request_id in finished} == {"success"}
    broken_off = [item for item in first.values() if item.outcome == "interrupted"]
    assert len(broken_off) >= len(admitted - finished) - 2
    assert {(i.usage_source, i.input_tokens, i.output_tokens, i.cost_nano_usd) for i in broken_off} == {
        ("estimated", 1000, 0, 2_500_000)
    }
    assert [path for path in tmp_path.iterdir() if path.name != journal._inc] == []
    await journal.close(5)


async def test_adoption_waits_when_nats_is_away_and_keeps_the_directory(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    server.kill()
    writer = await Writer.start(tmp_path, server.url)
    await writer.read(400)
    await writer.kill()
    left = list(tmp_path.iterdir())
    first = await start_journal(tmp_path, connection)
    await asyncio.sleep(0.3)
    await first.close(0)
    assert list(tmp_path.iterdir()) == left
    server.start()
    second = await start_journal(tmp_path, connection)
    await until(lambda: second.adoption.adopted_lives == 1)
    assert {item.request_id for item in await stored(server.url)} >= writer.admitted
    await second.close(5)


async def test_two_adopters_at_once_publish_without_loss(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    admitted: set[str] = set()
    # All at once: a later one would adopt what an earlier one left.
    writers = [await Writer.start(tmp_path, server.url) for _ in range(3)]
    for writer in writers:
        await writer.read(500)
    for writer in writers:
        await writer.kill()
        admitted |= writer.admitted
    other = await connect(server.url, name="other")
    journals = [await start_journal(tmp_path, connection), await start_journal(tmp_path, other)]
    await until(lambda: sum(journal.adoption.adopted_lives for journal in journals) == 3)
    assert {item.request_id for item in await stored(server.url)} >= admitted
    for journal in journals:
        await journal.close(5)
    assert list(tmp_path.iterdir()) == []
    await other.close()


async def test_adopter_killed_half_way_leaves_the_rest_to_the_next(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    server.kill()
    writer = await Writer.start(tmp_path, server.url)
    await writer.read(6000)
    await writer.kill()
    await bring_back(server, connection)
    adopter = await start_journal(tmp_path, connection)
    await until(lambda: adopter.outbox.published_events > 0)
    for task in adopter._tending + adopter._publishing:
        task.cancel()
    await asyncio.gather(*adopter._tending, *adopter._publishing, return_exceptions=True)
    adopter._life.release()
    second = await start_journal(tmp_path, connection)
    await until(lambda: second.adoption.adopted_lives == 2)
    assert {item.request_id for item in await stored(server.url)} >= writer.admitted
    await second.close(5)


async def test_stopped_process_keeps_its_journal(tmp_path: Path, server: NatsServer, connection: Connection) -> None:
    writer = await Writer.start(tmp_path, server.url, pause_s=0.001)
    await writer.read(50)
    os.kill(writer.process.pid, signal.SIGSTOP)
    journal = await start_journal(tmp_path, connection)
    for _ in range(5):
        await journal.adoption.adopt_all()
    assert journal.adoption.adopted_lives == 0
    os.kill(writer.process.pid, signal.SIGCONT)
    await writer.read(50)
    await writer.kill()
    await until(lambda: journal.adoption.adopted_lives == 1)
    assert {item.request_id for item in await stored(server.url)} >= writer.admitted
    await journal.close(5)


async def test_interrupted_request_without_price_has_no_cost(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    dead = await start_journal(tmp_path, connection)
    dead.admitted("r-unpriced", admission("r-unpriced", input_tokens=10))
    dead.admitted("r-priced", admission("r-priced", input_tokens=10, price=PriceOfInput(version=3, input=1_000_000)))
    await dead.close(0)
    journal = await start_journal(tmp_path, connection)
    await until(lambda: journal.adoption.adopted_lives == 1)
    by_id = {item.request_id: item for item in await stored(server.url)}
    unpriced, priced = by_id["r-unpriced"], by_id["r-priced"]
    assert (unpriced.cost_nano_usd, unpriced.cost_source, unpriced.status) == (None, "unpriced", 500)
    assert (priced.cost_nano_usd, priced.cost_source, priced.price_version) == (10, "priced", 3)
    await journal.close(5)


async def test_stream_wiped_during_adoption_gets_everything(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    js = connection.jetstream()
    await js.update_stream((await js.stream_info("USAGE")).config.evolve(max_msgs=4))
    server.kill()
    writer = await Writer.start(tmp_path, server.url)
    await writer.read(8000)
    await writer.kill()
    await bring_back(server, connection)
    journal = await start_journal(tmp_path, connection)
    await until(lambda: journal.outbox.published_events > 0 and journal.outbox._publisher.refused_count > 0)
    assert journal.adoption.adopted_lives == 0
    server.kill()
    await until(lambda: not connection.is_connected)
    server.wipe()
    await bring_back(server, connection)
    await declare(connection.jetstream())
    await until(lambda: journal.adoption.adopted_lives == 1)
    assert journal._watch.generation == 1
    assert {item.request_id for item in await stored(server.url)} >= writer.admitted
    await journal.close(5)


async def test_closing_fills_a_stream_that_was_made_again_just_before(
    tmp_path: Path, server: NatsServer, connection: Connection
) -> None:
    journal = await start_journal(tmp_path, connection, msgspec.structs.replace(QUICK, check_stream_every_s=3600))
    ids = journal_requests(journal, 10)
    await until(lambda: journal.unacked_count == 0)
    await connection.jetstream().delete_stream("USAGE")
    await declare(connection.jetstream())
    await journal.close(20)
    assert {item.request_id for item in await stored(server.url)} == ids
    assert list(tmp_path.iterdir()) == []
