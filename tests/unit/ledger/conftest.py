"""A ledger over a store without a server, with one key's meters."""

from collections.abc import Callable

import pytest

from sluicegate.devstack.ledger_stand_in import LoopClock, StandInStore
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter


@pytest.fixture
def store() -> StandInStore:
    return StandInStore()


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def make_ledger(store: StandInStore, clock: LoopClock) -> Callable[..., Ledger]:
    """Makes a ledger; to be called on the loop, where there is time."""

    async def nothing_spent(meter: Meter) -> int | None:
        return 0

    def make(**options: object) -> Ledger:
        return Ledger(store, **{"spent_so_far": nothing_spent, "clock": clock, "process": "p1", **options})  # type: ignore[arg-type]

    return make
