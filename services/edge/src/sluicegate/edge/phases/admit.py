"""Whether the request may start: its caller's limits, and the journal, which must know of it before a provider does."""

from sluicegate.contracts.money import price_at
from sluicegate.edge.errors import Refusal
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.records import Admission, admitted_record, shared_halves
from sluicegate.edge.phases.reserve import take, take_later

_UNRECORDED = "The gateway cannot record usage now. Try again."


def admit(exchange: Exchange) -> bool:
    """Take from the caller's limits and journal the admission. False: a limit needs a moment (`admit_later`).

    Refusal: a limit is short, or the journal is full.
    """
    edge = exchange.edge
    principal = exchange.principal
    if principal is None:
        raise RuntimeError("admit comes after authenticate")
    if edge.journal.is_full:
        raise Refusal("gateway_overloaded", _UNRECORDED)
    bounds = exchange.bounds = edge.view.bounds(principal, exchange.end_user, exchange.started_at_us)
    if bounds.is_bound:
        exchange.reservation = take(exchange, bounds, exchange.targets)
    _journal(exchange)
    return exchange.reservation is not None or not bounds.is_bound


async def admit_later(exchange: Exchange) -> bool:
    """Take from the caller's limits with the store's next answer. False: the request has ended meanwhile.

    Refusal: a limit is short.
    """
    reservation = await take_later(exchange, exchange.bounds, exchange.targets)
    if exchange.is_settled:
        exchange.edge.ledger.release(reservation)
        return False
    exchange.reservation = reservation
    return True


def _journal(exchange: Exchange) -> None:
    edge, principal, chat = exchange.edge, exchange.principal, exchange.chat
    if principal is None or chat is None:
        raise RuntimeError("admit comes after authenticate and classify")
    target = exchange.targets[0]
    exchange.price = price = price_at(target.prices, exchange.started_at_us)
    exchange.shared_halves = halves = shared_halves(
        principal, exchange.endpoint.name, chat.model, target, price, edge.edge_id
    )
    admission = Admission()
    admission.request_id = exchange.request_id
    admission.started_at_us = exchange.started_at_us
    admission.streamed = chat.stream is True
    admission.input_tokens = exchange.input_estimate
    admission.end_user = exchange.end_user
    admission.traceparent = exchange.head.traceparent
    try:
        edge.journal.admitted(exchange.request_id, admitted_record(admission, halves))
    except JournalWriteError as error:
        raise Refusal("gateway_overloaded", _UNRECORDED) from error
