"""The feed of the mirrors: both buckets into a view, how far that got, and the announcement of it.

Ready: both buckets were read whole once. Stale: what the view holds may be behind, so an unknown key
is no proof of anything. What the entries mean, and what a request sees, is the view's business.
"""

import asyncio
import time
from typing import Final

from nats.errors import Error, SlowConsumerError

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.facts import InvalidationApplied
from sluicegate.edge.metrics import Metrics
from sluicegate.edge.mirrors.bucket import CHECK_EVERY_S, BucketFeed, View

ANNOUNCE_EVERY_S: Final = 2.0
STALE_AFTER_S: Final = 15.0
_HEADERS: Final = {subjects.HEADER_SCHEMA: "invalidation.applied.v1"}


class MirrorFeed:
    """Feeds `view` while `run` runs. `edge` is the id of this process, as it appears in the announcements.

    The connection need not be open yet: until it is, the feed is not ready and waits.
    """

    def __init__(self, connection: Connection, view: View, edge: str, *, check_every_s: float = CHECK_EVERY_S) -> None:
        """Nothing is sent or subscribed before `run`."""
        self._connection = connection
        self._edge = edge
        self._subject = f"{subjects.INVALIDATION_APPLIED}.{edge}"
        self._moved = asyncio.Event()
        self._keys = BucketFeed(
            connection, subjects.KEYS_BUCKET.name, "keys", view, self._moved.set, check_every_s=check_every_s
        )
        self._catalogue = BucketFeed(
            connection, subjects.CATALOGUE_BUCKET.name, "catalogue", view, self._moved.set, check_every_s=check_every_s
        )
        self._buckets = (self._keys, self._catalogue)

    @property
    def is_ready(self) -> bool:
        """Whether both buckets have been read whole once."""
        return self._keys.is_loaded and self._catalogue.is_loaded

    @property
    def is_stale(self) -> bool:
        """Whether the view may be behind."""
        return self.stale_reason is not None

    @property
    def stale_reason(self) -> str | None:
        """Why the view may be behind, in words for `/readyz` and logs; None: it is not."""
        if not self._connection.is_connected:
            return "NATS is away"
        for bucket, name in zip(self._buckets, ("keys", "catalogue"), strict=True):
            if bucket.unsure_because is not None:
                return f"{name}: {bucket.unsure_because}"
        if self.check_age_s > STALE_AFTER_S:
            return f"not compared with NATS for {self.check_age_s:.0f} s"
        return None

    @property
    def check_age_s(self) -> float:
        """Seconds since the older of the two buckets was last found equal to the view."""
        return time.monotonic() - min(bucket.checked_at_s for bucket in self._buckets)

    @property
    def keys_sequence(self) -> int:
        """Stream sequence of the keys bucket that the view holds; 0 while that is not sure."""
        return self._keys.announced

    @property
    def catalogue_sequence(self) -> int:
        """Stream sequence of the catalogue bucket that the view holds; 0 while that is not sure."""
        return self._catalogue.announced

    async def run(self) -> None:
        """Feed and announce until cancelled."""
        self._connection.on_error(self._on_error)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keys.run(), name="mirror-keys")
            tasks.create_task(self._catalogue.run(), name="mirror-catalogue")
            tasks.create_task(self._announce(), name="mirror-announcements")

    def report_to(self, metrics: Metrics) -> None:
        """Let snapshots of `metrics` read the state of this feed."""
        metrics.watch("mirror_ready", lambda: int(self.is_ready))
        metrics.watch("mirror_stale", lambda: int(self.is_stale))
        metrics.watch("mirror_check_age_seconds", lambda: round(self.check_age_s, 3))
        metrics.watch("mirror_keys_sequence", lambda: self.keys_sequence)
        metrics.watch("mirror_catalogue_sequence", lambda: self.catalogue_sequence)
        metrics.watch("mirror_full_reads_total", lambda: sum(bucket.full_reads for bucket in self._buckets))
        metrics.watch("mirror_changes_total", lambda: sum(bucket.changes for bucket in self._buckets))

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            for bucket in self._buckets:
                bucket.doubt_if_dropped(error.sub)

    async def _announce(self) -> None:
        """Publish as it moves, once for all changes of a turn of the loop, and every `ANNOUNCE_EVERY_S`."""
        while True:
            try:
                async with asyncio.timeout(ANNOUNCE_EVERY_S):
                    await self._moved.wait()
            except TimeoutError:
                pass
            self._moved.clear()
            # Sent while away it would be buffered and tell an old state later.
            if self.is_ready and self._connection.is_connected:
                try:
                    await self._connection.publish(self._subject, self._announcement(), headers=_HEADERS)
                except Error:
                    continue

    def _announcement(self) -> bytes:
        return encode_event(
            InvalidationApplied(
                edge=self._edge,
                keys_sequence=self.keys_sequence,
                catalogue_sequence=self.catalogue_sequence,
                at_us=time.time_ns() // 1000,
            )
        )
