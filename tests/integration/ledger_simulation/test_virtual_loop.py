"""Virtual time: order, pauses and deaths of simulated processes."""

import asyncio

import pytest

from sluicegate.devstack.ledger_simulation.virtual_loop import Owner, VirtualLoop


async def tick(loop: VirtualLoop, seen: list[float], times: int) -> None:
    """Note the time once a second."""
    for _ in range(times):
        await asyncio.sleep(1)
        seen.append(loop.time())


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()  # type: ignore[abstract]


def test_clock_jumps_to_the_next_timer(loop: VirtualLoop) -> None:
    seen: list[float] = []

    loop.run(tick(loop, seen, 3))

    assert seen == [1, 2, 3]


def test_timers_of_a_paused_process_fire_when_it_goes_on(loop: VirtualLoop) -> None:
    seen: list[float] = []

    async def main() -> None:
        process = Owner(loop)
        task = process.start(tick(loop, seen, 3))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(3)
        process.resume()
        await task

    loop.run(main())

    assert seen == [1, 4.5, 5.5]


def test_killed_process_runs_nothing_more_not_even_its_finally(loop: VirtualLoop) -> None:
    seen: list[float] = []

    async def with_finally() -> None:
        try:
            await tick(loop, seen, 3)
        finally:
            seen.append(-1)

    async def main() -> None:
        process = Owner(loop)
        process.start(with_finally())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(10)
        assert seen == [1]

    loop.run(main())


def test_error_of_any_callback_ends_the_run(loop: VirtualLoop) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(10)

    with pytest.raises(ZeroDivisionError):
        loop.run(main())


def test_time_out_fires_in_virtual_time(loop: VirtualLoop) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(60)
        return loop.time()

    assert loop.run(main()) == 5
