"""Whether the request may start: the gateway's own limits, and the journal, which must know of it first."""

import msgspec

from sluicegate.contracts.money import price_at
from sluicegate.contracts.usage import PriceOfInput, RequestAdmitted
from sluicegate.edge.errors import Refusal
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.settle import end_user_of

_encode = msgspec.json.Encoder().encode


def admit(exchange: Exchange) -> None:
    """Journal the admission. Refusal: the journal is full."""
    edge = exchange.edge
    principal, chat = exchange.principal, exchange.chat
    if principal is None or chat is None:
        raise RuntimeError("admit comes after authenticate and classify")
    if edge.journal.is_full:
        raise Refusal("gateway_overloaded", "The gateway cannot record usage now. Try again.")
    target = exchange.targets[0]
    price = price_at(target.prices, exchange.started_at_us)
    record = RequestAdmitted(
        request_id=exchange.request_id,
        started_at_us=exchange.started_at_us,
        tenant=principal.tenant,
        department=principal.department,
        team=principal.team,
        key=principal.key.id,
        endpoint=exchange.endpoint.name,
        requested_model=chat.model,
        provider=target.provider_id,
        upstream_model=target.model_name,
        streamed=chat.stream is True,
        input_tokens=exchange.input_estimate,
        price=None if price is None else PriceOfInput(version=price.version, input=price.input),
        end_user=end_user_of(exchange),
        edge=edge.edge_id,
    )
    try:
        edge.journal.admitted(exchange.request_id, _encode(record))
    except JournalWriteError as error:
        raise Refusal("gateway_overloaded", "The gateway cannot record usage now. Try again.") from error
