"""Whether the request may start: the gateway's own limits, and the journal, which must know of it first."""

from sluicegate.contracts.money import price_at
from sluicegate.edge.errors import Refusal
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.records import Admission, admitted_record, shared_halves


def admit(exchange: Exchange) -> None:
    """Journal the admission. Refusal: the journal is full."""
    edge = exchange.edge
    principal, chat = exchange.principal, exchange.chat
    if principal is None or chat is None:
        raise RuntimeError("admit comes after authenticate and classify")
    if edge.journal.is_full:
        raise Refusal("gateway_overloaded", "The gateway cannot record usage now. Try again.")
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
        raise Refusal("gateway_overloaded", "The gateway cannot record usage now. Try again.") from error
