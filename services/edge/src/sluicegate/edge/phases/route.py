"""Where the request may go: the alias becomes targets, in order. Reads the mirror only."""

from sluicegate.edge.phases.exchange import Exchange


def route(exchange: Exchange) -> None:
    """Set the exchange's targets; the first one is tried first."""
    principal, chat = exchange.principal, exchange.chat
    if principal is None or chat is None:
        raise RuntimeError("route comes after authenticate and classify")
    exchange.targets = exchange.edge.view.targets(principal, chat.model)
