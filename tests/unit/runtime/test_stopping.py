"""Signals: the first asks, a second one ends."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from sluicegate.runtime.stopping import stop_event


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_event_is_set_when_a_signal_arrives(number: signal.Signals) -> None:
    event = stop_event()
    assert not event.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(event.wait(), timeout=5)


def test_second_signal_ends_a_process_that_does_not_stop() -> None:
    program = textwrap.dedent("""
        import asyncio, os, signal
        from sluicegate.runtime.stopping import stop_event

        async def main():
            event = stop_event()
            os.kill(os.getpid(), signal.SIGTERM)
            await event.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

        asyncio.run(main())
    """)
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == -signal.SIGTERM
