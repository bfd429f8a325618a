"""Whether batches are being stored, as `/readyz` tells it. Says nothing of servers: those are looked at elsewhere.

One failure may be chance (a restart, a lock); several in a row, with nothing stored in between, are a
state. It ends with the next batch that is stored, or when no failure has come for longer than a message
waits at most before it comes again: then there is nothing left that fails.
"""

import time
from collections.abc import Callable
from typing import Final

FAILURES_THAT_COUNT: Final = 3
# Longer than a statement that times out (60 s) and the pause before its message comes again (15 s).
FORGET_AFTER_S: Final = 120.0


class Storing:
    """What became of the last batches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures_in_a_row = 0
        self._failed_at = 0.0
        self._reason = ""

    def succeed(self) -> None:
        """A batch was stored."""
        self._failures_in_a_row = 0

    def fail(self, reason: str) -> None:
        """A batch was not stored, and will come again."""
        self._failures_in_a_row += 1
        self._failed_at = self._clock()
        self._reason = reason

    def state(self) -> tuple[bool, str]:
        """Return (ready, detail); the detail names a recent failure even while others are stored."""
        if not self._reason or self._clock() - self._failed_at > FORGET_AFTER_S:
            self._failures_in_a_row, self._reason = 0, ""
            return True, ""
        is_ready = self._failures_in_a_row < FAILURES_THAT_COUNT
        return is_ready, f"{'a batch was' if is_ready else 'batches are'} not stored: {self._reason}"
