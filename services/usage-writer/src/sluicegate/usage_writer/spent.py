"""Answers what a scope has spent, or that the writer is behind: a number that is too small would refill a budget."""

from typing import Final

import asyncpg
import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from sluicegate.contracts.facts import SpentAnswer, SpentQuestion
from sluicegate.store.pool import Pool
from sluicegate.usage_writer import repository
from sluicegate.usage_writer.catching_up import CatchingUp

_log = structlog.get_logger("sluicegate.usage_writer.spent")

QUARTER_US: Final = 15 * 60 * 1_000_000
CATCH_UP_S: Final = 1.0
_YEAR_9999_US: Final = 253_370_764_800_000_000
_BEHIND: Final = SpentAnswer(state="behind")


def _is_in_time(question: SpentQuestion) -> bool:
    return 0 <= question.start_us <= question.end_us <= _YEAR_9999_US


class SpentHandler:
    """Answers `SpentQuestion`s."""

    def __init__(self, pool: Pool, js: JetStreamContext, *, catch_up_s: float = CATCH_UP_S) -> None:
        self._pool = pool
        self._catching_up = CatchingUp(js, within_s=catch_up_s)

    async def answer(self, body: bytes) -> bytes:
        """Return an encoded `SpentAnswer`. Never raises: who asks must not wait for nothing."""
        return msgspec.json.encode(await self._answer(body))

    async def _answer(self, body: bytes) -> SpentAnswer:
        try:
            question = msgspec.json.decode(body, type=SpentQuestion)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            _log.warning("question not understood", reason=str(error))
            return _BEHIND
        if question.start_us % QUARTER_US or question.end_us % QUARTER_US or not _is_in_time(question):
            _log.warning("no period of whole quarters of an hour", start=question.start_us, end=question.end_us)
            return _BEHIND
        try:
            if not await self._catching_up.has_caught_up():
                return _BEHIND
            async with self._pool.acquire() as connection:
                return SpentAnswer(state="known", spent_nano_usd=await repository.spent(connection, question))
        except (NatsError, APIError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            _log.warning("cannot answer", reason=f"{type(error).__name__}: {error}")
            return _BEHIND
