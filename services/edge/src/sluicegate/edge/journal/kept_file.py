"""What the journal knows of one file of its own life."""

from pathlib import Path


class KeptFile:
    """How many events a file holds and how many are not acknowledged; it may go when that is none.

    `opened_at`, `closed_at`: monotonic seconds, None while it is written to. `is_damaged`: something in it can never
    be published, so it is set aside instead of deleted.
    """

    __slots__ = (
        "closed_at",
        "event_count",
        "is_damaged",
        "number",
        "opened_at",
        "path",
        "size_bytes",
        "unacked_count",
    )

    def __init__(self, number: int, path: Path, opened_at: float) -> None:
        """Describe a new file."""
        self.number = number
        self.path = path
        self.opened_at = opened_at
        self.size_bytes = 0
        self.event_count = 0
        self.unacked_count = 0
        self.closed_at: float | None = None
        self.is_damaged = False

    def may_go(self, kept_since: float) -> bool:
        """Whether all events are acknowledged and older than `kept_since`; without events it may go at once."""
        if self.event_count == 0:
            return True
        return self.unacked_count == 0 and self.closed_at is not None and self.closed_at <= kept_since
