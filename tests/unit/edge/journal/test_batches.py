"""Cutting events into messages: by tenant, within both limits, with ids that name exactly their bytes."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.contracts.subjects import MAX_EVENTS_PER_MESSAGE, MAX_MESSAGE_BYTES
from sluicegate.edge.journal.batches import Finished, cut, finished_among
from sluicegate.edge.journal.log import Record


def event(number: int, size: int = 10) -> bytes:
    return msgspec.json.encode({"request_id": f"r{number}", "tenant": "ten_a", "pad": "x" * size})


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=1500))
def test_every_event_is_in_one_message_of_its_tenant_in_order(shape: list[tuple[int, int]]) -> None:
    finished: list[Finished] = [(f"ten_{tenant}", event(n, size), n * 7) for n, (tenant, size) in enumerate(shape)]
    seen: dict[str, list[bytes]] = {}
    ids = []
    for batch in cut("inc.1", finished):
        events = [bytes(raw) for raw in msgspec.json.decode(batch.payload, type=list[msgspec.Raw])]
        assert 1 <= len(events) == batch.event_count <= MAX_EVENTS_PER_MESSAGE
        assert len(batch.payload) <= MAX_MESSAGE_BYTES
        tenant = batch.subject.removeprefix("gateway.request.completed.")
        seen.setdefault(tenant, []).extend(events)
        ids.append(batch.message_id)
    assert len(set(ids)) == len(ids)
    for tenant in {tenant for tenant, _, _ in finished}:
        assert seen[tenant] == [body for owner, body, _ in finished if owner == tenant]


def test_id_names_first_and_last_offset_so_that_a_longer_batch_has_another() -> None:
    finished: list[Finished] = [("ten_a", event(n), 100 + n) for n in range(3)]
    short, long = list(cut("inc.4", finished[:2])), list(cut("inc.4", finished))
    assert short[0].headers == {"Nats-Msg-Id": "inc.4.100-101", "Sluicegate-Schema": "request.completed.v1"}
    assert long[0].message_id == "inc.4.100-102"


def test_event_larger_than_a_message_travels_alone() -> None:
    finished: list[Finished] = [("t", event(0), 0), ("t", event(1, MAX_MESSAGE_BYTES), 1), ("t", event(2), 2)]
    assert [batch.event_count for batch in cut("i", finished)] == [1, 1, 1]


def test_records_that_hold_no_event_are_counted_and_the_others_found() -> None:
    records = [
        Record(8, ord("A"), event(1)),
        Record(100, ord("F"), event(2)),
        Record(200, ord("F"), b"not json"),
        Record(300, ord("F"), b'{"request_id":"r"}'),
        Record(400, ord("X"), b"of a later version"),
        Record(500, ord("F"), event(3)),
    ]
    assert finished_among(records) == ([("ten_a", event(2), 100), ("ten_a", event(3), 500)], 2)
