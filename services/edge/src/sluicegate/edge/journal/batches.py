"""What the records of this log mean, and cutting finished events into messages. Pure.

A message holds events of one tenant, at most 500 of them and 256 KiB.

The message id is `<inc>.<n>.<first>-<last>`: process life, file number, offsets of the first and last
record. A message holds *all* events of its tenant between the two, so equal ids mean equal bytes, and
a differently cut message has another id: the server never takes new events for a duplicate.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from sluicegate.contracts.events import join_events
from sluicegate.contracts.subjects import (
    EVENTS,
    HEADER_MESSAGE_ID,
    HEADER_SCHEMA,
    MAX_EVENTS_PER_MESSAGE,
    MAX_MESSAGE_BYTES,
    REQUEST_COMPLETED,
)
from sluicegate.edge.journal.log import Record

RECORD_ADMITTED: Final = ord("A")
RECORD_FINISHED: Final = ord("F")
SCHEMA: Final = next(event.schema for event in EVENTS if event.type_name == "UsageRecorded")


# An encoded event: its tenant, its JSON, the offset of its record. A plain tuple, made on the hot path.
Finished = tuple[str, bytes, int]


class Batch(NamedTuple):
    """One message, ready to be sent: again and again with the same bytes."""

    subject: str
    message_id: str
    payload: bytes
    event_count: int

    @property
    def headers(self) -> dict[str, str]:
        """The message's headers."""
        return {HEADER_MESSAGE_ID: self.message_id, HEADER_SCHEMA: SCHEMA}


class Owner(msgspec.Struct, frozen=True):
    """The two fields that are needed of any record here."""

    request_id: str
    tenant: str


decode_owner = msgspec.json.Decoder(Owner).decode


def finished_among(records: Iterable[Record]) -> tuple[list[Finished], int]:
    """Return the F records among these, and how many F records hold no event."""
    finished: list[Finished] = []
    bad_count = 0
    for record in records:
        if record.type == RECORD_FINISHED:
            try:
                finished.append((decode_owner(record.body).tenant, record.body, record.offset))
            except msgspec.MsgspecError:
                bad_count += 1
    return finished, bad_count


def cut(source: str, finished: Iterable[Finished]) -> Iterator[Batch]:
    """Yield batches of events that came in this order from one source, `<inc>.<n>`."""
    by_tenant: dict[str, list[Finished]] = {}
    for event in finished:
        by_tenant.setdefault(event[0], []).append(event)
    for tenant, events in by_tenant.items():
        subject = f"{REQUEST_COMPLETED}.{tenant}"
        for part in _parts(events):
            message_id = f"{source}.{part[0][2]}-{part[-1][2]}"
            yield Batch(subject, message_id, join_events([body for _, body, _ in part]), len(part))


def _parts(events: list[Finished]) -> Iterator[list[Finished]]:
    part: list[Finished] = []
    size = 2
    for event in events:
        event_bytes = len(event[1]) + 1
        if part and (len(part) == MAX_EVENTS_PER_MESSAGE or size + event_bytes > MAX_MESSAGE_BYTES):
            yield part
            part, size = [], 2
        part.append(event)
        size += event_bytes
    yield part
