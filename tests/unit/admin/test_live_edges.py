"""The live edges: who counts, who has applied what, and how long an answer waits."""

import asyncio
import time

import msgspec
import pytest

from sluicegate.admin.changes.changes import Edges
from sluicegate.admin.projection import edges as module
from sluicegate.admin.projection.edges import LEARNING_S, LIVE_FOR_S, LiveEdges, Sequences
from sluicegate.contracts.facts import InvalidationApplied


class Clock:
    """A monotonic clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def live(clock: Clock) -> LiveEdges:
    edges = LiveEdges()
    clock.now_s += LEARNING_S
    return edges


def announcement(edge: str, keys: int = 0, catalogue: int = 0) -> bytes:
    return msgspec.json.encode(
        InvalidationApplied(edge=edge, keys_sequence=keys, catalogue_sequence=catalogue, at_us=0)
    )


def test_state_is_propagated_when_every_edge_has_both_places(live: LiveEdges) -> None:
    live.hear(announcement("a", keys=5, catalogue=9))
    live.hear(announcement("b", keys=7, catalogue=8))
    assert live.state(Sequences(keys=5, catalogue=8)).propagated
    assert live.state(Sequences(keys=6, catalogue=8)).edges == Edges(applied=1, live=2)
    assert not live.state(Sequences(keys=5, catalogue=9)).propagated


def test_state_is_not_propagated_when_no_edge_is_live(live: LiveEdges) -> None:
    state = live.state(Sequences())
    assert (state.propagated, state.edges) == (False, Edges(applied=0, live=0))


def test_edge_no_longer_counts_when_it_fell_silent(live: LiveEdges, clock: Clock) -> None:
    live.hear(announcement("gone", keys=1))
    clock.now_s += LIVE_FOR_S - 1
    live.hear(announcement("here", keys=2))
    assert live.live_count == 2
    clock.now_s += 2
    assert live.state(Sequences(keys=2)).propagated
    assert live.live_count == 1


def test_edge_that_fell_back_is_believed(live: LiveEdges) -> None:
    live.hear(announcement("a", keys=5))
    live.hear(announcement("a", keys=0))
    assert not live.state(Sequences(keys=5)).propagated


def test_announcement_is_ignored_when_it_is_not_understood(live: LiveEdges) -> None:
    live.hear(b"nonsense")
    live.hear(b"{}")
    assert live.live_count == 0


async def test_wait_answers_at_once_when_no_edge_is_live(live: LiveEdges, clock: Clock) -> None:
    state = await live.wait(Sequences(keys=1), clock.now_s + 3_600)
    assert not state.propagated


async def test_wait_ends_when_the_last_edge_has_applied_it(live: LiveEdges, clock: Clock) -> None:
    live.hear(announcement("a", keys=1))
    live.hear(announcement("b", keys=0))
    waiting = asyncio.create_task(live.wait(Sequences(keys=1), clock.now_s + 3_600))
    await asyncio.sleep(0)
    assert not waiting.done()
    live.hear(announcement("b", keys=1))
    assert (await waiting).propagated


async def test_wait_says_how_many_when_time_is_up(live: LiveEdges, clock: Clock) -> None:
    live.hear(announcement("a", keys=1))
    live.hear(announcement("b", keys=0))
    state = await live.wait(Sequences(keys=1), clock.now_s)
    assert (state.propagated, state.edges) == (False, Edges(applied=1, live=2))


async def test_wait_does_not_guess_when_it_has_just_begun_to_listen() -> None:
    """The first to announce itself may not be the only one."""
    edges = LiveEdges()
    edges.hear(announcement("first", keys=1))
    waiting = asyncio.create_task(edges.wait(Sequences(keys=1), time.monotonic() + 3_600))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
