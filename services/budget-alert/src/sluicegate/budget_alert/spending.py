"""What was really spent, as usage-writer says, and whether it has stored what was there a while ago."""

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from sluicegate.bus.connection import Connection
from sluicegate.contracts.facts import SpentAnswer, SpentQuestion
from sluicegate.contracts.subjects import RPC_BUDGET_SPENT, USAGE_WRITER

_log = structlog.get_logger("sluicegate.budget_alert.spending")

# usage-writer gives itself a second to catch up before it answers.
_ANSWER_TIMEOUT_S = 3.0
_NO_STREAM = 10059


class Spending:
    """Asks over the bus. Never raises: what is not known is None or False."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._js = connection.jetstream(timeout=2.0)
        self._noted: int | None = None

    async def spent(self, question: SpentQuestion) -> int | None:
        """Return what was spent in nano-USD, at least; None if that is not known now."""
        if not self._connection.is_connected:
            return None
        try:
            message = await self._connection.request(
                RPC_BUDGET_SPENT, msgspec.json.encode(question), timeout=_ANSWER_TIMEOUT_S
            )
            answer = msgspec.json.decode(message.data, type=SpentAnswer)
        except (NatsError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            _log.info("spent is not known", scope=question.scope, id=question.id, reason=_reason(error))
            return None
        return answer.spent_nano_usd if answer.state == "known" else None

    async def has_caught_up(self) -> bool:
        """Tell whether all usage events that were there at the last call are stored, and note those of now."""
        noted, self._noted = self._noted, None
        if not self._connection.is_connected:
            return False
        try:
            last = await self._last_sequence()
            info = await self._js.consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
        except (NatsError, APIError, OSError, TimeoutError) as error:
            _log.info("progress of usage-writer is not known", reason=_reason(error))
            return False
        self._noted = last
        return noted is not None and info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= noted

    async def _last_sequence(self) -> int:
        """Return the sequence of the last event of its own subject: the stream may hold others."""
        try:
            message = await self._js.get_last_msg(USAGE_WRITER.stream, USAGE_WRITER.filter_subject)
        except NotFoundError as error:
            if error.err_code == _NO_STREAM:
                raise
            return 0
        return message.seq or 0


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
