"""Records between the message they came in and the row they become. No SQL of its own."""

from collections.abc import Iterable

from sluicegate.bus.worker import BadEvent, Delivery
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.store.pool import PoolConnection
from sluicegate.usage_writer import policy, rows
from sluicegate.usage_writer.dimensions import Dimensions
from sluicegate.usage_writer.policy import Window
from sluicegate.usage_writer.rows import Detail, Names, SeriesIds

UsageDelivery = Delivery[UsageRecorded]
Refusals = dict[UsageDelivery, list[BadEvent]]


class Record:
    """One record, where it came from, and what it is made into.

    `ids` is None while its series is not known; `row` is there once all names have numbers.
    """

    __slots__ = ("delivery", "event", "ids", "index", "names", "request_id", "row")

    def __init__(
        self,
        delivery: UsageDelivery,
        index: int,
        event: UsageRecorded,
        request_id: bytes,
        names: Names,
        ids: SeriesIds | None,
    ) -> None:
        self.delivery = delivery
        self.index = index
        self.event = event
        self.request_id = request_id
        self.names = names
        self.ids = ids
        self.row = b""


def refuse(refusals: Refusals, delivery: UsageDelivery, index: int, event: UsageRecorded, reason: str) -> None:
    """Put a record among those for the dead letters."""
    refusals.setdefault(delivery, []).append(BadEvent(index, reason, encode_event(event)))


def admit(
    deliveries: Iterable[UsageDelivery], window: Window, dimensions: Dimensions, refusals: Refusals
) -> list[Record]:
    """Return the records that can be stored, each once; put the others among the refusals."""
    admitted: dict[tuple[int, bytes], Record] = {}
    for delivery in deliveries:
        for index, event in enumerate(delivery.items):
            if isinstance(event, BadEvent):
                refusals.setdefault(delivery, []).append(event)
                continue
            names = rows.names_of(event)
            ids = dimensions.series(names)
            reason = policy.refusal(event, window) or _refusal_of_texts(event, names if ids is None else (), dimensions)
            if reason is None:
                try:
                    request_id = rows.identity(event.request_id)
                except ValueError:
                    reason = "request_id is not a UUID"
                else:
                    # The same record twice in one transaction: its first appearance counts.
                    admitted.setdefault(
                        (event.started_at_us, request_id), Record(delivery, index, event, request_id, names, ids)
                    )
                    continue
            refuse(refusals, delivery, index, event, reason)
    return list(admitted.values())


def _refusal_of_texts(event: UsageRecorded, new_names: Iterable[object], dimensions: Dimensions) -> str | None:
    """Names that are known have been looked at before, and few records have details."""
    for name in new_names:
        if isinstance(name, str) and (reason := policy.name_refusal(name)):
            return reason
    for name in (event.edge, event.error_code):
        if name and dimensions.number(name) is None and (reason := policy.name_refusal(name)):
            return reason
    if rows.has_detail(event) and policy.has_nul(event):
        return "a string holds a NUL character"
    return None


async def pack(connection: PoolConnection, records: list[Record], dimensions: Dimensions) -> None:
    """Give each record its row. Asks the database for the numbers of names that are new."""
    unknown = {record.names for record in records if record.ids is None}
    learned = await dimensions.learn(connection, unknown) if unknown else {}
    numbers = await dimensions.numbers(
        connection,
        {record.event.edge for record in records} | {record.event.error_code or "" for record in records},
    )
    for record in records:
        event = record.event
        ids = record.ids or learned[record.names]
        record.row = rows.row(event, record.request_id, ids, numbers[event.edge], numbers[event.error_code or ""])


def details(records: Iterable[Record]) -> list[Detail]:
    """Return the detail rows of those that have any."""
    return [rows.detail(record.event, record.request_id) for record in records if rows.has_detail(record.event)]
