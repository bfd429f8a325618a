"""Tasks that run beside the API until it stops."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

_ASK_AGAIN_S: Final = 0.2


async def run_together(*works: Coroutine[Any, Any, None]) -> None:
    """Run these until one fails (its exception is raised) or this is cancelled; then stop the others.

    Not a TaskGroup: it cancels each task once, and Python 3.11's `asyncio.wait_for`, which nats-py uses
    everywhere, swallows a cancellation that arrives together with the result.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await stop(tasks)


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended; their results are nobody's business any more."""
    left = [task for task in tasks if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_ASK_AGAIN_S)
        left = [task for task in left if not task.done()]
    await asyncio.gather(*tasks, return_exceptions=True)
