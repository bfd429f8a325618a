"""What the journal keeps, for how long, and what it does when it cannot write. No NATS: a stand-in publisher."""

import asyncio
import errno
import resource
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from sluicegate.bus.acked_publisher import Ack, MessageTooLargeError
from sluicegate.bus.connection import Connection
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.usage import PriceOfInput, RequestAdmitted, UsageRecorded
from sluicegate.edge.journal import journal as journal_module
from sluicegate.edge.journal import outbox as outbox_module
from sluicegate.edge.journal.adoption import INTERRUPTED_STATUS, interrupted
from sluicegate.edge.journal.batches import decode_owner
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.journal.journal import Journal, JournalSettings
from sluicegate.edge.journal.log import LogReader

Start = Callable[..., Awaitable[Journal]]

# Housekeeping is called by the tests themselves: `tend` below.
CALM = JournalSettings(adopt_every_s=3600, batch_s=3600, rotate_s=3600)


class StandInPublisher:
    """Acknowledges at once, unless told to hold everything back."""

    def __init__(self) -> None:
        self.connection = Connection("test")
        self.is_connected = True
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.too_large_bytes = 1 << 20
        self.sent: list[tuple[str, str]] = []
        self.stored: Counter[str] = Counter()

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        await self.is_open.wait()
        if len(payload) > self.too_large_bytes:
            raise MessageTooLargeError(subject, "too large")
        self.sent.append((subject, headers["Nats-Msg-Id"]))
        self.stored.update(
            decode_owner(bytes(raw)).request_id for raw in msgspec.json.decode(payload, type=list[msgspec.Raw])
        )
        return Ack("USAGE", len(self.sent))

    def hold(self) -> None:
        self.is_open.clear()

    def release(self) -> None:
        self.is_open.set()


def admission(request_id: str, size: int = 0) -> bytes:
    return encode_event(
        RequestAdmitted(
            request_id=request_id,
            started_at_us=1,
            tenant="ten_a",
            team="tea_a",
            key="key_a",
            endpoint="/v1/chat/completions",
            end_user="x" * size or None,
        )
    )


def event(request_id: str, size: int = 0) -> bytes:
    return encode_event(
        UsageRecorded(
            request_id=request_id,
            started_at_us=1,
            tenant="ten_a",
            team="tea_a",
            key="key_a",
            endpoint="/v1/chat/completions",
            status=200,
            outcome="success",
            end_user="x" * size or None,
        )
    )


def finish(journal: Journal, *request_ids: str, size: int = 0) -> None:
    for request_id in request_ids:
        journal.finished(request_id, "ten_a", event(request_id, size))


def kinds(path: Path) -> list[tuple[str, str]]:
    """Return the records of a file as (type, request id)."""
    return [(chr(record.type), decode_owner(record.body).request_id) for record in LogReader(path).records()]


def files(journal: Journal) -> list[int]:
    return [number for number, _ in journal._life.logs()]


async def until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _log_lines() -> Iterator[None]:
    """Keep log lines from being printed: where a test fills the disk, that would fail too."""
    with capture_logs():
        yield


@pytest.fixture
def publisher() -> StandInPublisher:
    return StandInPublisher()


@pytest.fixture
async def start(tmp_path: Path, publisher: StandInPublisher) -> AsyncIterator[Start]:
    made: list[Journal] = []

    async def start_one(settings: JournalSettings = CALM, **changed: object) -> Journal:
        changes = cast(dict[str, Any], changed)
        journal = Journal(
            tmp_path, str(uuid.uuid4()), cast(Any, publisher), msgspec.structs.replace(settings, **changes)
        )
        journal._watch.seen.set()
        await journal.start()
        made.append(journal)
        return journal

    yield start_one
    publisher.release()
    for journal in made:
        await journal.close(0)


async def test_records_are_in_the_file_when_the_calls_return(start: Start) -> None:
    journal = await start()
    journal.admitted("r1", admission("r1"))
    finish(journal, "r1", "refused")
    assert kinds(journal._life.log_path(1)) == [("A", "r1"), ("F", "r1"), ("F", "refused")]
    assert journal.open_count == 0


async def test_event_is_published_within_the_batch_time(start: Start, publisher: StandInPublisher) -> None:
    journal = await start(batch_s=0.02)
    finish(journal, "r1", "r2")
    await until(lambda: journal.unacked_count == 0)
    assert publisher.stored == {"r1": 1, "r2": 1}
    assert len(publisher.sent) == 1


async def test_new_file_repeats_admissions_of_open_requests_only(
    start: Start,
) -> None:
    journal = await start()
    for request_id in ("open1", "done", "open2"):
        journal.admitted(request_id, admission(request_id))
    finish(journal, "done")
    journal._rotate()
    finish(journal, "open1")
    journal._rotate()
    assert kinds(journal._life.log_path(2)) == [("A", "open1"), ("A", "open2"), ("F", "open1")]
    assert kinds(journal._life.log_path(3)) == [("A", "open2")]


async def test_file_is_closed_by_size_and_by_age(start: Start) -> None:
    journal = await start(rotate_bytes=2000)
    finish(journal, *(f"r{n}" for n in range(20)))
    journal._flush()
    assert journal._file.number == 2
    journal._tend()
    assert journal._file.number == 2, "an empty file needs no successor"
    journal._settings = msgspec.structs.replace(journal._settings, rotate_s=0)
    finish(journal, "r21")
    journal._tend()
    assert journal._file.number == 3


async def test_file_is_kept_until_acknowledged_and_old_enough(start: Start, publisher: StandInPublisher) -> None:
    publisher.hold()
    journal = await start(keep_s=600)
    finish(journal, "r1")
    journal._rotate()
    journal._files[0].closed_at = 0.0
    journal._tend()
    assert 1 in files(journal), "not acknowledged"
    publisher.release()
    await until(lambda: journal.unacked_count == 0)
    journal._files[0].closed_at = journal._loop.time()
    journal._tend()
    assert 1 in files(journal), "not old enough"
    journal._files[0].closed_at = journal._loop.time() - 601
    journal._tend()
    assert 1 not in files(journal)


async def test_files_go_oldest_first_when_an_older_one_is_not_acknowledged(
    start: Start, publisher: StandInPublisher
) -> None:
    journal = await start(keep_s=0)
    publisher.hold()
    finish(journal, "r1")
    journal._rotate()
    await until(lambda: len(journal.outbox._sending) == 1)
    journal._rotate()
    journal._tend()
    assert files(journal) == [1, 2, 3]
    publisher.release()
    await until(lambda: journal.unacked_count == 0)
    journal._tend()
    assert files(journal) == [3]


async def test_acknowledged_files_go_early_and_nothing_else_when_cap_is_reached(
    start: Start, publisher: StandInPublisher
) -> None:
    journal = await start(cap_bytes=40_000)
    finish(journal, *(f"r{n}" for n in range(100)), size=200)
    journal._flush()
    await until(lambda: journal.unacked_count == 0)
    publisher.hold()
    finish(journal, *(f"s{n}" for n in range(100)), size=200)
    journal._flush()
    finish(journal, *(f"t{n}" for n in range(50)), size=200)
    journal._tend()
    assert 1 not in files(journal)
    assert journal.is_full
    publisher.release()
    journal._flush()
    await until(lambda: journal.unacked_count == 0)
    journal._tend()
    assert journal.size_bytes < 40_000
    assert set(publisher.stored.values()) == {1}
    assert len(publisher.stored) == 250


async def test_full_journal_takes_what_is_open_to_its_end_when_it_refuses(
    start: Start, publisher: StandInPublisher
) -> None:
    publisher.hold()
    journal = await start(cap_bytes=10_000)
    journal.admitted("open", admission("open"))
    finish(journal, *(f"r{n}" for n in range(100)))
    journal._tend()
    assert journal.is_full
    finish(journal, "open")
    assert ("F", "open") in kinds(journal._file.path)
    assert journal.dropped_events == 0


async def test_full_journal_serves_and_counts_when_told_so(start: Start, publisher: StandInPublisher) -> None:
    publisher.hold()
    journal = await start(cap_bytes=10_000, on_full="serve")
    finish(journal, *(f"r{n}" for n in range(100)))
    journal._tend()
    assert not journal.is_full
    size = journal._writer.position
    journal.admitted("a", admission("a"))
    finish(journal, "a")
    assert journal._writer.position == size
    assert (journal.unrecorded_admissions, journal.open_count, len(journal._unwritten)) == (1, 0, 1)
    publisher.release()
    await until(lambda: journal.unacked_count == 1)
    journal._tend()
    await until(lambda: journal.unacked_count == 0 and journal.outbox.is_empty)
    assert publisher.stored["a"] == 1


async def test_events_beyond_the_memory_bound_are_dropped_and_counted(
    start: Start, publisher: StandInPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_MAX_UNWRITTEN_BYTES", 2000)
    publisher.is_connected = False
    journal = await start()
    journal._writer.close()
    finish(journal, *(f"r{n}" for n in range(50)))
    assert journal.dropped_events > 0
    assert journal.dropped_events + len(journal._unwritten) == 50


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else soft, hard))

    yield allow
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_admission_raises_and_finished_waits_in_memory_when_disk_is_full(
    start: Start, publisher: StandInPublisher, full_disk: Callable[[int], None]
) -> None:
    publisher.is_connected = False
    journal = await start()
    journal.admitted("before", admission("before"))
    full_disk(journal._writer.position + 30)
    with pytest.raises(JournalWriteError):
        journal.admitted("new", admission("new"))
    finish(journal, "before")
    assert (journal.open_count, journal.write_errors, journal.unacked_count) == (0, 2, 1)
    assert kinds(journal._file.path) == [("A", "before")]
    full_disk(-1)
    journal._tend()
    assert kinds(journal._file.path) == [("A", "before"), ("F", "before")]
    publisher.is_connected = True
    await until(lambda: journal.unacked_count == 0)
    assert publisher.stored == {"before": 1}


async def test_event_is_published_from_memory_when_disk_stays_full(
    start: Start, publisher: StandInPublisher, full_disk: Callable[[int], None]
) -> None:
    journal = await start()
    full_disk(journal._writer.position)
    finish(journal, "r1", "r2")
    journal._tend()
    await until(lambda: publisher.stored == {"r1": 1, "r2": 1})
    assert publisher.sent[0][1].split(".")[1] == "memory"
    full_disk(-1)


async def test_serving_policy_admits_unrecorded_when_disk_is_full(
    start: Start, full_disk: Callable[[int], None]
) -> None:
    journal = await start(on_full="serve")
    full_disk(journal._writer.position)
    journal.admitted("r1", admission("r1"))
    assert (journal.unrecorded_admissions, journal.open_count) == (1, 0)
    full_disk(-1)


async def test_journal_goes_on_in_a_new_file_when_the_old_one_cannot_be_written(
    start: Start,
) -> None:
    journal = await start()
    journal.admitted("r1", admission("r1"))
    journal._writer.close()
    finish(journal, "r1")
    journal._tend()
    journal._tend()
    assert kinds(journal._life.log_path(2)) == [("F", "r1")]


async def test_old_file_is_kept_when_no_new_one_can_be_made(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = await start()
    finish(journal, "r1")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(journal_module, "LogWriter", fail)
    journal._rotate()
    finish(journal, "r2")
    assert kinds(journal._life.log_path(1)) == [("F", "r1"), ("F", "r2")]


async def test_memory_stays_bounded_when_nats_is_away(start: Start, publisher: StandInPublisher) -> None:
    publisher.is_connected = False
    journal = await start(rotate_bytes=200_000)
    for lump in range(40):
        finish(journal, *(f"r{lump}-{n}" for n in range(100)), size=200)
        journal._flush()
    assert journal.unacked_count == 4000
    assert (len(journal.outbox._ready), len(journal._fresh)) == (0, 0)
    assert len(journal.outbox._ranges) == len(files(journal)) - (journal._file.event_count == 0)
    publisher.is_connected = True
    await until(lambda: journal.unacked_count == 0)
    assert len(publisher.stored) == 4000
    assert set(publisher.stored.values()) == {1}


async def test_all_kept_events_are_sent_again_when_the_stream_is_another(
    start: Start, publisher: StandInPublisher
) -> None:
    journal = await start()
    finish(journal, "old1", "old2")
    journal._rotate()
    finish(journal, "now")
    journal._flush()
    await until(lambda: journal.unacked_count == 0)
    publisher.hold()
    finish(journal, "in flight")
    journal._flush()
    await until(lambda: len(journal.outbox._sending) == 1)
    finish(journal, "fresh")
    journal._watch.generation += 1
    journal._on_stream_changed()
    assert journal.unacked_count == 5
    publisher.release()
    await until(lambda: journal.unacked_count == 0 and journal.outbox.is_empty)
    # What the old stream was about to acknowledge does not count.
    assert publisher.stored == {"old1": 2, "old2": 2, "now": 2, "in flight": 2, "fresh": 1}


async def test_batch_with_equal_id_has_equal_events_when_sent_again(start: Start, publisher: StandInPublisher) -> None:
    bodies: dict[str, set[bytes]] = {}
    send = publisher.publish

    async def note(subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        bodies.setdefault(headers["Nats-Msg-Id"], set()).add(payload)
        return await send(subject, payload, headers)

    publisher.publish = note  # type: ignore[method-assign]
    journal = await start(rotate_bytes=5_000)
    for lump in range(6):
        finish(journal, *(f"r{lump}-{n}" for n in range(lump + 1)))
        journal._flush()
        await until(lambda: journal.unacked_count == 0)
        journal._watch.generation += 1
        journal._on_stream_changed()
        await until(lambda: journal.unacked_count == 0)
    assert all(len(payloads) == 1 for payloads in bodies.values())


async def test_damaged_file_of_our_own_is_kept_aside_and_the_rest_published(
    start: Start, publisher: StandInPublisher, tmp_path: Path
) -> None:
    publisher.is_connected = False
    journal = await start()
    finish(journal, "r1", "r2", "r3")
    journal._rotate()
    path = journal._life.log_path(1)
    broken = bytearray(path.read_bytes())
    broken[broken.index(b'"r2"') + 1] ^= 0xFF
    path.write_bytes(broken)
    finish(journal, "r4")
    journal._flush()
    publisher.is_connected = True
    await until(lambda: publisher.stored == {"r1": 1, "r4": 1})
    journal._tend()
    assert (tmp_path / "aside" / f"{journal._inc}-1.log").read_bytes() == bytes(broken)
    assert (journal.outbox.bad_records, journal.set_aside_files, journal.unacked_count) == (1, 1, 0)


async def test_event_too_large_for_the_server_keeps_its_file_and_stops_nothing(
    start: Start, publisher: StandInPublisher, tmp_path: Path
) -> None:
    publisher.too_large_bytes = 5000
    journal = await start()
    finish(journal, "large", size=6000)
    journal._flush()
    finish(journal, "small")
    journal._rotate()
    await until(lambda: publisher.stored == {"small": 1} and journal.outbox.is_empty)
    journal._tend()
    assert [path.name for path in (tmp_path / "aside").iterdir()] == [f"{journal._inc}-1.log"]


async def test_closing_leaves_open_requests_for_adoption(start: Start, tmp_path: Path) -> None:
    journal = await start()
    journal.admitted("r1", admission("r1"))
    await journal.close(0)
    assert (tmp_path / journal._inc / "1.log").exists()


async def test_unused_journal_leaves_nothing_when_closed(start: Start, tmp_path: Path) -> None:
    journal = await start()
    journal.admitted("r1", admission("r1"))
    journal._open.clear()
    await journal.close(0)
    assert list(tmp_path.iterdir()) == []


async def test_publishing_goes_on_when_a_task_of_it_failed(
    start: Start, publisher: StandInPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_HOUSEKEEPING_EVERY_S", 0.01)
    publisher.is_connected = False
    journal = await start()
    failures = iter([RuntimeError("a bug")])
    read_back = journal.outbox._read_back

    async def fail_once() -> None:
        for failure in failures:
            raise failure
        await read_back()

    journal.outbox._read_back = fail_once  # type: ignore[method-assign]
    finish(journal, "r1")
    journal._flush()
    publisher.is_connected = True
    await until(lambda: publisher.stored == {"r1": 1})


async def test_events_are_published_after_all_when_sending_failed_in_an_unknown_way(
    start: Start, publisher: StandInPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_FAILED_WAIT_S", 0.01)
    send = publisher.publish
    failures = iter([RuntimeError("a bug"), AttributeError("another")])

    async def fail_first(subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        for failure in failures:
            raise failure
        return await send(subject, payload, headers)

    publisher.publish = fail_first  # type: ignore[method-assign]
    journal = await start()
    finish(journal, "r1")
    journal._flush()
    await until(lambda: journal.unacked_count == 0)
    assert publisher.stored == {"r1": 1}


async def test_rest_is_published_when_a_file_has_vanished(start: Start, publisher: StandInPublisher) -> None:
    publisher.is_connected = False
    journal = await start()
    finish(journal, "gone")
    journal._rotate()
    journal._life.log_path(1).unlink()
    finish(journal, "here")
    journal._flush()
    publisher.is_connected = True
    await until(lambda: publisher.stored == {"here": 1} and journal.outbox.is_empty)
    journal._tend()
    assert (journal.outbox.bad_records, journal.set_aside_files, journal.unacked_count) == (1, 1, 0)


def test_interrupted_request_is_charged_its_input_estimate() -> None:
    admitted = RequestAdmitted(
        request_id="r1",
        started_at_us=123,
        tenant="ten_a",
        department="dep_a",
        team="tea_a",
        key="key_a",
        endpoint="/v1/chat/completions",
        requested_model="gpt",
        provider="prv_a",
        upstream_model="mod_a",
        streamed=True,
        input_tokens=2000,
        price=PriceOfInput(version=4, input=150_000_000),
        end_user="u",
        edge="e",
        traceparent="t",
    )
    event = interrupted(admitted)
    assert (event.outcome, event.status, event.usage_source) == ("interrupted", INTERRUPTED_STATUS, "estimated")
    assert (event.input_tokens, event.output_tokens, event.cost_nano_usd) == (2000, 0, 300_000)
    assert (event.cost_source, event.price_version) == ("priced", 4)
    for field in ("request_id", "started_at_us", "tenant", "department", "team", "key", "endpoint", "requested_model", "provider", "upstream_model", "streamed", "end_user", "edge", "traceparent"):  # fmt: skip
        assert getattr(event, field) == getattr(admitted, field)


def test_interrupted_request_without_price_is_unpriced_and_never_free() -> None:
    admitted = msgspec.json.decode(admission("r1"), type=RequestAdmitted)
    event = interrupted(admitted)
    assert (event.cost_nano_usd, event.cost_source, event.price_version) == (None, "unpriced", None)
