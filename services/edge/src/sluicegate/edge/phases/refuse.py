"""Ends that are not an answer: a refusal, a fault of our own, the client going away, the process stopping."""

from typing import TYPE_CHECKING

from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.responses import render_refusal
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.settle import settle, settle_refused
from sluicegate.runtime.logs import get_logger

if TYPE_CHECKING:
    from sluicegate.edge.edge import Edge

_log = get_logger(__name__)


def refuse(exchange: Exchange, refusal: Refusal) -> None:
    """End the exchange with an error; nothing of an answer has been sent."""
    if not exchange.is_settled:
        settle_refused(exchange, refusal)
        answer_refusal(exchange, refusal)


def answer_refusal(exchange: Exchange, refusal: Refusal) -> None:
    """Send the error of an exchange that has been settled."""
    if refusal.closes or exchange.edge.is_draining:
        exchange.keeps_alive = False
    if not exchange.is_whole:
        exchange.client.refuse_body(exchange)
    dialect, request_id = exchange.endpoint.dialect, exchange.request_id
    lines = exchange.edge.date + exchange.bounds.header_lines(exchange.target_bounds)
    exchange.client.finish(
        exchange, render_refusal(refusal, dialect, request_id, lines, keep_alive=exchange.keeps_alive)
    )


def fail(exchange: Exchange) -> None:
    """End the exchange after a fault of our own; called from an except block."""
    _log.exception("a request failed on a fault of the gateway", request_id=exchange.request_id)
    if exchange.has_answer_begun or exchange.is_settled:
        settle(exchange, outcome="stream_interrupted", status=200, error_code="internal_error")
        exchange.client.abort()
        return
    refuse(exchange, Refusal("internal_error", "The gateway failed on this request. Its log has the request id."))


def cancel(exchange: Exchange) -> None:
    """The client has gone."""
    if exchange.is_settled or exchange.state == "waiting":
        return
    if exchange.relay is not None:
        exchange.relay.cancel()
    else:
        settle(exchange, outcome="client_cancelled", status=499, error_code="client_closed")


def stop_all(edge: "Edge") -> None:
    """The process ends now: what has not ended by itself ends here, each with its record."""
    edge.is_draining = edge.is_stopping = True
    for exchange in list(edge.open_exchanges):
        if exchange.relay is not None:
            exchange.relay.stop()
        else:
            refuse(exchange, Refusal("gateway_overloaded", "The gateway is stopping. Try again.", closes=True))
