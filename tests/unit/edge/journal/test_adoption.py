"""What becomes of a dead process's directory: torn, damaged, foreign, and adopted more than once."""

import uuid
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sluicegate.bus.acked_publisher import MessageTooLargeError, PublishError
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.usage import RequestAdmitted, UsageRecorded
from sluicegate.edge.journal.adoption import Adoption
from sluicegate.edge.journal.batches import RECORD_ADMITTED, RECORD_FINISHED, Batch
from sluicegate.edge.journal.life import Life
from sluicegate.edge.journal.log import LogWriter, encode_record

COMMON: dict[str, Any] = {
    "started_at_us": 1,
    "tenant": "ten_a",
    "team": "tea_a",
    "key": "key_a",
    "endpoint": "/v1/chat/completions",
}


class StandIn:
    """Outbox and stream watch in one: takes everything, or fails as told."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.failures: list[PublishError] = []
        self.generation = 0
        self.wipes_at: set[int] = set()

    async def send(self, batch: Batch) -> None:
        if self.failures:
            raise self.failures.pop()
        self.batches.append(batch)
        if len(self.batches) in self.wipes_at:
            self.generation += 1

    async def confirm(self) -> None:
        pass

    @property
    def events(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for batch in self.batches:
            found += [(e.request_id, e.outcome) for e in msgspec.json.decode(batch.payload, type=list[UsageRecorded])]
        return found


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def adoption(tmp_path: Path, stand_in: StandIn) -> Adoption:
    return Adoption(tmp_path, str(uuid.uuid4()), cast(Any, stand_in), cast(Any, stand_in), every_s=1)


def a(request_id: str) -> bytes:
    return encode_record(RECORD_ADMITTED, encode_event(RequestAdmitted(request_id=request_id, **COMMON)))


def f(request_id: str) -> bytes:
    event = UsageRecorded(request_id=request_id, status=200, outcome="success", **COMMON)
    return encode_record(RECORD_FINISHED, encode_event(event))


def leave(root: Path, *logs: list[bytes]) -> Life:
    """Make the directory of a dead process with these records in its files."""
    life = Life.create(root, str(uuid.uuid4()))
    for number, records in enumerate(logs, 1):
        LogWriter(life.log_path(number), records).close()
    life.release()
    return life


async def test_admission_finished_in_a_later_file_is_not_interrupted(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    leave(tmp_path, [a("r1"), a("r2"), f("r3")], [a("r1"), a("r2"), f("r1")], [a("r2"), a("r4"), f("r4")])
    await adoption.adopt_all()
    assert sorted(stand_in.events) == [
        ("r1", "success"),
        ("r2", "interrupted"),
        ("r3", "success"),
        ("r4", "success"),
    ]
    assert list(tmp_path.iterdir()) == []
    assert (adoption.adopted_lives, adoption.adopted_events, adoption.interrupted_requests) == (1, 3, 1)


async def test_torn_tail_costs_nothing_that_was_promised(tmp_path: Path, adoption: Adoption, stand_in: StandIn) -> None:
    life = leave(tmp_path, [a("r1"), f("r1"), a("r2"), f("r2")])
    log = life.log_path(1)
    log.write_bytes(log.read_bytes()[:-5])
    await adoption.adopt_all()
    assert stand_in.events == [("r1", "success"), ("r2", "interrupted")]
    assert (adoption.bad_records, adoption.set_aside_files) == (1, 0)
    assert list(tmp_path.iterdir()) == []


async def test_damaged_file_is_published_up_to_the_damage_and_kept_aside(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    life = leave(tmp_path, [f("r1"), f("r2"), f("r3")], [f("r4")])
    log = life.log_path(1)
    broken = bytearray(log.read_bytes())
    broken[broken.index(b'"r2"') + 1] ^= 0xFF
    log.write_bytes(broken)
    await adoption.adopt_all()
    assert stand_in.events == [("r1", "success"), ("r4", "success")]
    assert [path.read_bytes() for path in (tmp_path / "aside").iterdir()] == [bytes(broken)]
    assert not life.path.exists()
    assert (adoption.bad_records, adoption.set_aside_files) == (1, 1)


async def test_file_of_a_later_version_is_kept_aside(tmp_path: Path, adoption: Adoption) -> None:
    life = leave(tmp_path, [f("r1")])
    life.log_path(1).write_bytes(b"SGRLOG\x09\x00whatever")
    await adoption.adopt_all()
    assert [path.name for path in (tmp_path / "aside").iterdir()] == [f"{life.inc}-1.log"]


async def test_bodies_that_are_no_records_keep_their_file_aside_and_stop_nothing(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    bad = [
        encode_record(RECORD_FINISHED, b"not json"),
        encode_record(RECORD_ADMITTED, b"[]"),
        encode_record(RECORD_ADMITTED, b'{"request_id":"r2","tenant":"ten_a"}'),
        encode_record(ord("Z"), b"a type of a later version"),
    ]
    leave(tmp_path, [f("r1"), *bad, f("r3")])
    await adoption.adopt_all()
    assert stand_in.events == [("r1", "success"), ("r3", "success")]
    assert (adoption.bad_records, adoption.set_aside_files) == (3, 1)


async def test_event_too_large_for_the_server_keeps_its_file_aside(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    stand_in.failures = [MessageTooLargeError("s", "too large")]
    leave(tmp_path, [f("r1")], [f("r2")])
    await adoption.adopt_all()
    assert stand_in.events == [("r2", "success")]
    assert adoption.set_aside_files == 1


async def test_directory_stays_for_the_next_try_when_publishing_fails(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    stand_in.failures = [PublishError("s", "connection closed")]
    life = leave(tmp_path, [a("r1"), f("r2")])
    await adoption.adopt_all()
    assert (life.path.exists(), adoption.adopted_lives) == (True, 0)
    await adoption.adopt_all()
    assert sorted(stand_in.events) == [("r1", "interrupted"), ("r2", "success")]
    assert not life.path.exists()


async def test_everything_is_published_again_when_the_stream_changed_meanwhile(
    tmp_path: Path, adoption: Adoption, stand_in: StandIn
) -> None:
    stand_in.wipes_at = {1}
    leave(tmp_path, [f("r1")], [f("r2")])
    await adoption.adopt_all()
    assert [request_id for request_id, _ in stand_in.events] == ["r1", "r2", "r1", "r2"]
    assert adoption.adopted_events == 2


async def test_second_adoption_of_a_directory_sends_the_same_bytes_under_the_same_ids(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """The server drops the second message of an id: so it must hold the same events."""
    leave(tmp_path, [a("r1"), a("r2"), f("r3"), a("r4")], [a("r1"), a("r2"), a("r4"), f("r4")])
    stand_in.wipes_at = {3}
    own = str(uuid.uuid4())
    await Adoption(tmp_path, own, cast(Any, stand_in), cast(Any, stand_in), every_s=1).adopt_all()
    first, second = stand_in.batches[:3], stand_in.batches[3:]
    assert [(b.message_id, b.payload) for b in first] == [(b.message_id, b.payload) for b in second]
    assert len({batch.message_id for batch in first}) == 3


async def test_empty_and_living_directories_are_handled(tmp_path: Path, adoption: Adoption) -> None:
    empty = leave(tmp_path)
    living = Life.create(tmp_path, str(uuid.uuid4()))
    await adoption.adopt_all()
    assert (empty.path.exists(), living.path.exists()) == (False, True)
    assert adoption.adopted_lives == 1
    living.release()
