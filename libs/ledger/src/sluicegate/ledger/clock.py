"""The clock of leases: seconds that go on while the machine sleeps and never jump."""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Anything with a time in seconds that only grows."""

    def now(self) -> float:
        """Tell the time."""
        ...


class BootClock:
    """CLOCK_BOOTTIME. The monotonic clock stands still while a machine sleeps, and leases end meanwhile."""

    now: Callable[[], float]

    def __init__(self) -> None:
        boot_time = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only
        self.now = time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)
