"""The order of the phases, written once.

    head whole:  authenticate
    body whole:  classify → route → admit → relay → settle

Only `admit` may have to wait, 50 ms at most, and only near a limit or for a meter that is new here.

Each phase takes the exchange and raises Refusal to end it. `settle` runs once, from whatever ends the
request: the relay, a refusal, the client going away, a stop.
"""

from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.admit import admit, admit_later
from sluicegate.edge.phases.authenticate import authenticate
from sluicegate.edge.phases.classify import classify, scan_ahead
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.refuse import fail, refuse
from sluicegate.edge.phases.relay import Relay
from sluicegate.edge.phases.route import route


def begin(exchange: Exchange) -> None:
    """The exchange's turn has come and its head is whole."""
    exchange.state = "receiving"
    exchange.edge.open_exchanges.add(exchange)
    exchange.edge.metrics.in_flight += 1
    try:
        authenticate(exchange)
    except Refusal as refusal:
        refuse(exchange, refusal)
    except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
        fail(exchange)


def look_ahead(exchange: Exchange, piece: bytes) -> None:
    """The body has become large, and this is its next piece."""
    try:
        scan_ahead(exchange, piece)
    except Refusal as refusal:
        refuse(exchange, refusal)
    except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
        fail(exchange)


def run(exchange: Exchange) -> None:
    """The body is whole."""
    exchange.state = "running"
    try:
        principal = exchange.principal
        if principal is not None and principal.generation != exchange.edge.view.generation:
            # Something has changed since the head came. Limits of before would be put in force again for all.
            authenticate(exchange)
        classify(exchange)
        route(exchange)
        if admit(exchange):
            exchange.relay = relay = Relay(exchange)
            relay.start()
        else:
            task = exchange.edge.loop.create_task(_run_later(exchange))
            exchange.edge.waiting.add(task)
            task.add_done_callback(exchange.edge.waiting.discard)
    except Refusal as refusal:
        refuse(exchange, refusal)
    except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
        _fail(exchange)


async def _run_later(exchange: Exchange) -> None:
    try:
        if await admit_later(exchange):
            exchange.relay = relay = Relay(exchange)
            relay.start()
    except Refusal as refusal:
        refuse(exchange, refusal)
    except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
        _fail(exchange)


def _fail(exchange: Exchange) -> None:
    relay = exchange.relay
    if relay is not None:
        relay.close()
    fail(exchange)
