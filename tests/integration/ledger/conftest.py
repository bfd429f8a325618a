"""Ledgers of several processes over one real Valkey, in virtual time or in real time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random

import pytest

from sluicegate.devstack.ledger_simulation.network import Link, Weather
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.store import Scripts, SimulatedStore
from sluicegate.devstack.ledger_simulation.virtual_loop import VirtualLoop
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter
from sluicegate.ledger.store import Call, RedisMeterStore, Reply


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    """Valkey for tests in virtual time: scripts see the time they are given."""
    server = Server(redis_url)
    yield server
    server.close()


class Heard:
    """What one process's calls were answered, in order."""

    def __init__(self) -> None:
        self.replies: list[tuple[Call, Reply]] = []

    def sends(self) -> int:
        return len(self.replies)

    def executed(self, call: Call, reply: Reply, sent: int) -> None:
        self.replies.append((call, reply))

    def repaired(self, name: str) -> None:
        """Nothing to note."""


@pytest.fixture
def weather() -> Weather:
    return Weather()


@pytest.fixture
def make_store(server: Server, weather: Weather) -> Callable[[VirtualLoop], tuple[SimulatedStore, Heard]]:
    """Makes the store of one process, with what it heard."""

    def make(loop: VirtualLoop) -> tuple[SimulatedStore, Heard]:
        heard = Heard()
        return SimulatedStore(loop, server, Link(weather, Random(1)), Scripts(), heard), heard

    return make


@pytest.fixture
async def make_ledger(redis_url: str) -> AsyncIterator[Callable[..., Awaitable[Ledger]]]:
    """Makes started ledgers in real time, each with its own connections."""
    made: list[Ledger] = []

    async def nothing_spent(meter: Meter) -> int | None:
        return 0

    async def make(url: str = redis_url, **options: object) -> Ledger:
        ledger = Ledger(RedisMeterStore(url), **{"spent_so_far": nothing_spent, **options})  # type: ignore[arg-type]
        await ledger.start()
        made.append(ledger)
        return ledger

    yield make
    for ledger in made:
        await ledger.close()
        await ledger.store.close()
