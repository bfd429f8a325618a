"""Waiting for something to become true, with a deadline and a message; never a fixed sleep."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


async def until(
    condition: Callable[[], Any | Awaitable[Any]], what: str, *, deadline_s: float = 60, every_s: float = 0.05
) -> Any:
    """Return the first true value of `condition` (plain or async); fail naming `what` and the last value."""
    last: Any = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                last = condition()
                if inspect.isawaitable(last):
                    last = await last
                if last:
                    return last
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what} (last: {last!r})") from None
