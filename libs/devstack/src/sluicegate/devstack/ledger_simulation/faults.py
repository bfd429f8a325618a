"""What goes wrong, each as an endless coroutine over a `World`; cancelled when the world calms down.

The spans are drawn so that every fault crosses the protocol's times: a process's validity (10 s), the longest a
settlement stays unsent (5 s), the lives of records (20, 60 and 80 s), and the auditor's round (30 s).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sluicegate.devstack.ledger_simulation.edge import SimulatedEdge
from sluicegate.devstack.ledger_simulation.network import SLOW_LEG_S
from sluicegate.devstack.ledger_simulation.world import World

Fault = Callable[[World], Coroutine[Any, Any, None]]


async def crashes(world: World) -> None:
    """`kill -9` of a process with requests open; another takes its place."""
    while True:
        await asyncio.sleep(world.random.uniform(10, 30))
        world.kill(world.random.choice(world.running()))
        await asyncio.sleep(world.random.uniform(0, 10))
        world.start_edge()


async def pauses(world: World) -> None:
    """A process stands still while the world goes on: longer than every life in half of the cases."""
    while True:
        await asyncio.sleep(world.random.uniform(5, 20))
        awake = [edge for edge in world.running() if not edge.owner.is_paused]
        if awake:
            edge = world.random.choice(awake)
            edge.owner.pause()
            asyncio.get_running_loop().call_later(world.random.choice((5, 15, 40, 90, 150)), edge.owner.resume)


async def lost_messages(world: World) -> None:
    """Requests and replies go missing, few at most times, many at some."""
    while True:
        share = world.random.choice((0.01, 0.05, 0.25))
        world.weather.lost_requests = world.weather.lost_replies = share
        await asyncio.sleep(world.random.uniform(3, 15))


async def late_messages(world: World) -> None:
    """Requests and replies take up to six seconds, so that calls arrive in another order than they were sent."""
    while True:
        world.weather.late = world.random.choice((0.02, 0.1, 0.3))
        await asyncio.sleep(world.random.uniform(3, 15))


async def outages(world: World) -> None:
    """The store cannot be reached for a while, sometimes for longer than leases are valid."""
    while True:
        await asyncio.sleep(world.random.uniform(10, 40))
        world.weather.is_down = True
        await asyncio.sleep(world.random.choice((0.5, 0.5, 3, 12, 30, 70)))
        world.weather.is_down = False


async def partitions(world: World) -> None:
    """One process alone cannot reach the store for a while."""
    while True:
        await asyncio.sleep(world.random.uniform(2, 15))
        edge = world.random.choice(world.running())
        edge.link.is_cut = True
        asyncio.get_running_loop().call_later(world.random.choice((3, 12, 25, 40, 90)), _reconnect, edge)


def _reconnect(edge: SimulatedEdge) -> None:
    edge.link.is_cut = False


async def far_away(world: World) -> None:
    """Each answer takes the processes, though not the auditor, about 200 ms: a backlog goes slowly."""
    for edge in world.running():
        edge.link.is_slow = True
    await asyncio.Event().wait()


async def slowness(world: World) -> None:
    """Each answer takes about 200 ms."""
    while True:
        await asyncio.sleep(world.random.uniform(5, 20))
        usual, world.weather.leg_s = world.weather.leg_s, SLOW_LEG_S
        await asyncio.sleep(world.random.uniform(5, 30))
        world.weather.leg_s = usual


async def flushes(world: World) -> None:
    """FLUSHALL under load."""
    while True:
        await asyncio.sleep(world.random.uniform(20, 50))
        world.flush()


async def failovers(world: World) -> None:
    """A replica takes over that has not seen the last second."""
    while True:
        await asyncio.sleep(world.random.uniform(20, 50))
        replica = world.server.snapshot()
        await asyncio.sleep(world.random.uniform(0.1, 1.0))
        world.fail_over(replica)


async def lowered_limits(world: World) -> None:
    """Limits fall to about what is used, and rise again; each process hears of it in its own time."""
    while True:
        await asyncio.sleep(world.random.uniform(10, 30))
        name = world.random.choice(sorted(world.truth))
        usual = world.truth[name].limit
        await world.change_limit(name, int(usual * world.random.uniform(0.3, 0.9)))
        await asyncio.sleep(world.random.uniform(10, 40))
        await world.change_limit(name, usual)


async def lagging_postgres(world: World) -> None:
    """The usage-writer falls behind by up to two auditor rounds."""
    while True:
        world.postgres.lag_s = world.random.choice((0.05, 0.05, 2, 15, 70))
        await asyncio.sleep(world.random.uniform(10, 40))


async def shifting_load(world: World) -> None:
    """Most of the load goes to one process, then to another; each keeps a little. No fault, but leases must follow."""
    while True:
        world.leases_lag_until_s = world.loop.time() + 10.0
        busy = world.random.choice(world.running())
        for edge in world.running():
            edge.pace = 3.0 if edge is busy else 0.02
        await asyncio.sleep(world.random.uniform(20, 60))
