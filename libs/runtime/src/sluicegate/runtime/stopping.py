"""When a process should stop: one event, set by SIGTERM or SIGINT."""

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; a second one ends the process at once.

    Call it on the main thread, with the loop running.
    """
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        event.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return event
