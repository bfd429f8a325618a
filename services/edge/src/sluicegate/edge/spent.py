"""Asks usage-writer what was spent on a budget before its meter was there. Not on any request's path."""

from typing import Final, cast

import msgspec
from nats.errors import Error as NatsError

from sluicegate.bus.connection import Connection
from sluicegate.contracts.catalogue import Scope
from sluicegate.contracts.facts import SpentAnswer, SpentQuestion
from sluicegate.contracts.subjects import RPC_BUDGET_SPENT
from sluicegate.ledger.meters import Meter

# usage-writer gives itself a second to catch up; an answer older than two is thrown away.
_TIMEOUT_S: Final = 2.0


class SpentSoFar:
    """The question, as the ledger asks it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __call__(self, meter: Meter) -> int | None:
        """Return what the meter's scope has spent in its period, in nano-USD; None: that is not known now."""
        if not self._connection.is_connected:
            return None
        question = SpentQuestion(
            scope=cast(Scope, meter.scope), id=meter.scope_id, start_us=meter.start_us, end_us=meter.end_us
        )
        try:
            message = await self._connection.request(
                RPC_BUDGET_SPENT, msgspec.json.encode(question), timeout=_TIMEOUT_S
            )
            answer = msgspec.json.decode(message.data, type=SpentAnswer)
        except (NatsError, OSError, TimeoutError, msgspec.MsgspecError):
            return None
        return answer.spent_nano_usd if answer.state == "known" else None
