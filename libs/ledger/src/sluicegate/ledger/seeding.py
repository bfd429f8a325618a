"""Asks what was spent before, for budget meters that the store does not know, and tells the store.

Single flight: a meter is asked for once at a time. Answers are written together, and thrown away when they have become
old: what was spent since the question would be missing. Until then the policy decides.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from sluicegate.ledger.meters import Meter
from sluicegate.ledger.store import Seed, StoreError

if TYPE_CHECKING:
    from sluicegate.ledger.ledger import Ledger
    from sluicegate.ledger.pump import Pump

BATCH: Final = 32
OLDEST_ANSWER_S: Final = 2.0
ASK_AGAIN_S: Final = 0.5


class Seeding:
    """The missing meters of one pump."""

    def __init__(self, ledger: "Ledger", pump: "Pump") -> None:
        self._ledger = ledger
        self._pump = pump
        self._missing: dict[Meter, None] = {}
        self._task: asyncio.Task[None] | None = None

    def ask(self, meter: Meter) -> None:
        """Have a meter seeded; the pump hears of it by `seeded`."""
        self._missing[meter] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger seeding")

    def forget(self, meter: Meter) -> None:
        """Nobody is interested any more."""
        self._missing.pop(meter, None)

    def close(self) -> None:
        """Stop asking."""
        self._missing.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._missing:
            has_progress = False
            for start in range(0, len(self._missing), BATCH):
                batch = list(self._missing)[start : start + BATCH]
                if await self._seed(batch):
                    has_progress = True
            if self._missing and not has_progress:
                await asyncio.sleep(ASK_AGAIN_S)

    async def _seed(self, batch: list[Meter]) -> bool:
        """Ask, write, and tell the pump. False if nothing was written."""
        asked_at = self._ledger.now()
        spent = await asyncio.gather(*map(self._ask, batch))
        known = [(meter, number) for meter, number in zip(batch, spent, strict=True) if number is not None]
        if not known or self._ledger.now() - asked_at > OLDEST_ANSWER_S:
            return False
        seeds = [Seed(meter.name, number, meter.expire_at_ms) for meter, number in known]
        try:
            await self._ledger.store.seed(self._pump.tag, seeds)
        except StoreError:
            return False
        self._ledger.counts.seeds += len(known)
        for meter, _ in known:
            if meter in self._missing:
                del self._missing[meter]
                self._pump.seeded(meter)
        return True

    async def _ask(self, meter: Meter) -> int | None:
        try:
            async with asyncio.timeout(OLDEST_ANSWER_S):
                return await self._ledger.spent_so_far(meter)
        except TimeoutError:
            return None
