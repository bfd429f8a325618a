"""Asks what was spent before, for budget meters that the store does not know, and tells the store.

Single flight: a meter is asked for once at a time, and 32 at a time altogether. Answers that are there together are
written together. One that has become old is thrown away: what was spent since the question would be missing. Until a
meter is seeded the policy decides.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicegate.ledger.meters import Meter
from sluicegate.ledger.store import Seed, StoreError

if TYPE_CHECKING:
    from sluicegate.ledger.ledger import Ledger
    from sluicegate.ledger.pump import Pump

QUESTIONS_AT_ONCE: Final = 32
OLDEST_ANSWER_S: Final = 2.0
ASK_AGAIN_S: Final = 0.5


class _Answered(NamedTuple):
    meter: Meter
    spent: int
    asked_at: float


class Seeding:
    """The missing meters of one pump."""

    def __init__(self, ledger: "Ledger", pump: "Pump") -> None:
        self._ledger = ledger
        self._pump = pump
        self._asking: dict[Meter, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._answered: list[_Answered] = []
        self._writing: asyncio.Task[None] | None = None

    def ask(self, meter: Meter) -> None:
        """Have a meter seeded; the pump hears of it by `seeded`."""
        if meter not in self._asking:
            task = asyncio.get_running_loop().create_task(self._ask(meter), name=f"ledger seeds {meter.name}")
            self._asking[meter] = task

    def forget(self, meter: Meter) -> None:
        """Nobody is interested any more."""
        task = self._asking.pop(meter, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Stop asking."""
        for meter in list(self._asking):
            self.forget(meter)
        if self._writing is not None:
            self._writing.cancel()

    async def _ask(self, meter: Meter) -> None:
        async with self._places:
            asked_at = self._ledger.now()
            spent = await self._answer(meter)
        if spent is None:
            await self._ask_again(meter)
            return
        self._answered.append(_Answered(meter, spent, asked_at))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="ledger writes seeds")

    async def _answer(self, meter: Meter) -> int | None:
        try:
            async with asyncio.timeout(OLDEST_ANSWER_S):
                return await self._ledger.spent_so_far(meter)
        except Exception:  # noqa: BLE001 - whatever the bus raises: there is no answer, and there will be another question
            return None

    async def _write(self) -> None:
        while self._answered:
            answered, self._answered = self._answered, []
            now = self._ledger.now()
            young = [answer for answer in answered if now - answer.asked_at <= OLDEST_ANSWER_S]
            seeds = [Seed(meter.name, spent, meter.expire_at_ms) for meter, spent, _ in young]
            try:
                if seeds:
                    await self._ledger.store.seed(self._pump.tag, seeds)
            except StoreError:
                young = []
            self._ledger.counts.seeds += len(young)
            written = {meter for meter, _, _ in young}
            for meter, _, _ in answered:
                if self._asking.pop(meter, None) is None:
                    continue
                if meter in written:
                    self._pump.seeded(meter)
                else:
                    self._asking[meter] = asyncio.get_running_loop().create_task(self._ask_again(meter))

    async def _ask_again(self, meter: Meter) -> None:
        await asyncio.sleep(ASK_AGAIN_S)
        await self._ask(meter)
