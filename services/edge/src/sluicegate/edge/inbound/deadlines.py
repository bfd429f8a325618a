"""One sweep, four times a second, over everything that can take too long. So no request needs a timer of its own."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from sluicegate.edge.edge import Edge
from sluicegate.edge.outbound.pool import IDLE_S
from sluicegate.runtime.logs import get_logger

_EVERY_S: Final = 0.25
_log = get_logger(__name__)


class Timed(Protocol):
    """A client connection: `deadline` is in loop time, 0 where nothing is due."""

    deadline: float

    def expire(self, now: float) -> None:
        """The deadline has passed."""


async def sweep(edge: Edge, connections: Iterable[Timed]) -> None:
    """Expire what is over its deadline, for ever. `connections` is uvicorn's live set."""
    ticks = 0
    while True:
        await asyncio.sleep(_EVERY_S)
        ticks += 1
        now = edge.loop.time()
        for connection in list(connections):
            if 0 < connection.deadline < now:
                _guarded(connection.expire, now)
        for exchange in list(edge.open_exchanges):
            relay = exchange.relay
            if relay is not None and 0 < relay.deadline < now:
                _guarded(relay.expire)
        if ticks % 4 == 0:
            edge.renew_date()
            edge.pools.close_idle(now - IDLE_S)


def _guarded(expire: Callable[..., None], *arguments: float) -> None:
    try:
        expire(*arguments)
    except Exception:  # noqa: BLE001 - one fault must not end the sweep
        _log.exception("a deadline could not be handled")
