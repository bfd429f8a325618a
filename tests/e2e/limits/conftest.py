"""Three stacks, of 1, 2 and 4 edge workers, and what is tried on them.

Each stack has a thread in which its scenarios run, because they wait a lot: for a minute to pass, for a dead process's
leases to end. The tests look at what came of them. Where one scenario would disturb another (a kill, a flush) they
run one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sluicegate.devstack.limits.bursts import Burst, Spending, burst
from sluicegate.devstack.limits.faults import Flushed, Recovery, flushed_valkey, killed_edge, valkey_away
from sluicegate.devstack.limits.minutes import Minutes, minutes_of_requests, minutes_of_tokens
from sluicegate.devstack.limits.open_requests import OpenRequests, open_requests
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.stack_client import Stack

T = TypeVar("T")

# Nothing passes without a lease, however long the machine makes Valkey's answers wait: so all must be exact. Where
# Valkey is taken away, the default policy is looked at.
_EXACT = {"SLUICEGATE_EDGE_LIMITS_WHEN_STORE_AWAY": "closed"}
# An audit as often as one can be useful: a live process reports what it has settled within five seconds.
_AUDITOR = {"SLUICEGATE_BUDGET_ALERT_AUDIT_EVERY_S": "3", "SLUICEGATE_BUDGET_ALERT_AUDIT_WAIT_S": "8"}

SPENDINGS = {
    "as reserved": Spending(limit=10_000, reserved=1_000, used=1_000),
    "less than reserved": Spending(limit=10_000, reserved=1_000, used=400),
    "more than reserved": Spending(limit=10_000, reserved=1_000, used=1_500),
    "a large limit": Spending(limit=400_000, reserved=1_000, used=1_000, calls_at_once=20, patient_clients=32),
}


class Outcomes:
    """What the scenarios come to, as they end."""

    def __init__(self) -> None:
        self.bursts: dict[tuple[int, str], Future[Burst]] = {}
        self.killed: Future[Recovery] = Future()
        self.requests: Future[Minutes] = Future()
        self.tokens: Future[Minutes] = Future()
        self.open_requests: Future[OpenRequests] = Future()
        self.away: Future[Recovery] = Future()
        self.flushed: Future[Flushed] = Future()

    async def of_bursts(self, stack: Stack, workers: int) -> None:
        """Spend a budget in each way, all at the same time."""
        await asyncio.gather(
            *(_into(self.bursts[workers, name], burst(stack, spending)) for name, spending in SPENDINGS.items())
        )

    async def with_a_kill(self, stack: Stack) -> None:
        """Kill a worker first; the rest is done by the one that follows it, while the dead one's leases end."""
        is_calm = asyncio.Event()
        killed = asyncio.create_task(_into(self.killed, killed_edge(stack, when_calm=is_calm.set)))
        calm = asyncio.create_task(is_calm.wait())
        await asyncio.wait({killed, calm}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(
            killed,
            _into(self.requests, minutes_of_requests(stack)),
            _into(self.tokens, minutes_of_tokens(stack)),
            self._bursts_and_open_requests(stack),
        )

    async def _bursts_and_open_requests(self, stack: Stack) -> None:
        await self.of_bursts(stack, 4)
        await _into(self.open_requests, open_requests(stack))

    async def with_valkey_broken(self, stack: Stack) -> None:
        """Take Valkey away, then have it forget everything: the last that is done to this stack."""
        await self.of_bursts(stack, 2)
        await _into(self.away, valkey_away(stack))
        await _into(self.flushed, flushed_valkey(stack))


async def _into(future: "Future[T]", scenario: Awaitable[T]) -> None:
    """Hand over what a scenario comes to, a failure as well: the test that asks for it shows it."""
    try:
        future.set_result(await scenario)
    except Exception as error:  # noqa: BLE001 - whatever it is
        future.set_exception(error)


@pytest.fixture(scope="session")
def outcomes(servers_folder: Path) -> Iterator[Outcomes]:
    """Starts the stacks, the one with the longest scenarios first, and everything on them."""
    found = Outcomes()
    found.bursts = {(workers, name): Future() for workers in (1, 2, 4) for name in SPENDINGS}
    plans: dict[int, Callable[[Stack], Coroutine[Any, Any, None]]] = {
        4: found.with_a_kill,
        2: found.with_valkey_broken,
        1: lambda stack: found.of_bursts(stack, 1),
    }
    with ThreadPoolExecutor(len(plans)) as threads:
        for workers, plan in plans.items():
            env = _AUDITOR if workers == 2 else _AUDITOR | _EXACT
            own = OwnStack(servers_folder / f"limits-{workers}", ("--edge-workers", str(workers)), env=env)
            threads.submit(_carry_out, own, own.start(), plan)
        yield found


def _carry_out(own: OwnStack, stack: Stack, plan: Callable[[Stack], Coroutine[Any, Any, None]]) -> None:
    """Do all that is planned for a stack, and stop it: nobody needs it any more."""
    try:
        asyncio.run(plan(stack))
    finally:
        own.stop()
