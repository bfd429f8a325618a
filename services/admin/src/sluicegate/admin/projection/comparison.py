"""Compares the tables with the buckets, whole, and repairs: a lost or wiped bucket heals by itself.

At start, every few minutes, and at once when a bucket was made again or lacks its `meta.complete`. The
comparison holds no lock against the relay: what it finds different is settled by the relay's own rule, so
a change in between makes it look twice, never wrong. `meta.complete` is written last, and only into the
very bucket that was compared: edges take over a bucket as soon as they see it.
"""

import asyncio
import time
from datetime import datetime
from typing import Final

from nats.errors import Error

from sluicegate.admin.projection import repository
from sluicegate.admin.projection.buckets import Buckets, Contents, StaleWriteError
from sluicegate.admin.projection.entries import BUCKET_NAMES, BucketName, Entry, encoded
from sluicegate.admin.projection.relay import BATCH, Relay
from sluicegate.contracts.catalogue import META_COMPLETE, MetaComplete
from sluicegate.runtime.logs import get_logger
from sluicegate.store.pool import Pool, PoolConnection
from sluicegate.store.transactions import is_unavailable

COMPARE_EVERY_S: Final = 180.0
LOOK_EVERY_S: Final = 2.0
_MARKERS_PER_COMPARISON: Final = 1_000

_log = get_logger(__name__)


class Comparison:
    """Keeps the buckets equal to the tables; `run` does the work."""

    def __init__(self, pool: Pool, buckets: Buckets, relay: Relay, *, every_s: float = COMPARE_EVERY_S) -> None:
        self._pool = pool
        self._buckets = buckets
        self._relay = relay
        self._every_s = every_s
        self._due_at_s = time.monotonic()
        self._created: dict[BucketName, datetime] = {}
        self._wake = asyncio.Event()
        self.repaired_count = 0
        self.finished_count = 0

    def wake(self) -> None:
        """Look at the buckets now."""
        self._wake.set()

    async def run(self) -> None:
        """Compare until cancelled, whatever is away."""
        while True:
            self._wake.clear()
            try:
                if self._buckets.is_connected and (time.monotonic() >= self._due_at_s or await self._is_doubtful()):
                    await self.compare()
            except Exception as error:  # noqa: BLE001 - outlives its own faults; logged here
                if isinstance(error, Error | StaleWriteError) or is_unavailable(error):
                    _log.warning("comparison has to wait", error=str(error) or type(error).__name__)
                else:
                    _log.exception("comparison failed")
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def compare(self) -> None:
        """Compare both buckets and repair what is missing, different or too much."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await repository.try_compare_lock(connection):
                return  # another process is at it
            for bucket in BUCKET_NAMES:
                self._created[bucket] = await self._compare(connection, bucket)
        self._due_at_s = time.monotonic() + self._every_s
        self.finished_count += 1

    async def _is_doubtful(self) -> bool:
        for bucket in BUCKET_NAMES:
            if await self._buckets.created(bucket) != self._created.get(bucket):
                return True
            if (await self._buckets.last(Entry(bucket, META_COMPLETE))).value is None:
                return True
        return False

    async def _compare(self, connection: PoolConnection, bucket: BucketName) -> datetime:
        contents = await self._buckets.contents(bucket)
        had_complete = contents.values.pop(META_COMPLETE, None) is not None
        wrong, count = await self._differences(connection, bucket, contents)
        for start in range(0, len(wrong), BATCH):
            await self._relay.settle([Entry(bucket, name) for name in wrong[start : start + BATCH]])
        self.repaired_count += len(wrong)
        if wrong:
            _log.warning("bucket repaired", bucket=bucket, entries=len(wrong), count=count)
        if wrong or not had_complete:
            await self._complete(bucket, contents.created, count)
        for name, sequence in contents.markers[:_MARKERS_PER_COMPARISON]:
            await self._buckets.forget_marker(bucket, name, sequence)
        return contents.created

    async def _differences(
        self, connection: PoolConnection, bucket: BucketName, contents: Contents
    ) -> tuple[list[str], int]:
        """Return the names of entries that are missing, different or too much, and how many there should be."""
        wrong = []
        count = 0
        left = contents.values
        async for name, value in repository.everything(connection, bucket):
            count += 1
            if left.pop(name, None) != value:
                wrong.append(name)
        return wrong + list(left), count

    async def _complete(self, bucket: BucketName, created: datetime, count: int) -> None:
        """Write `meta.complete`, unless this is no longer the bucket that was compared."""
        entry = Entry(bucket, META_COMPLETE)
        last = await self._buckets.last(entry)
        if await self._buckets.created(bucket) != created:
            raise StaleWriteError(f"the bucket of {bucket} was made again meanwhile")
        value = encoded(MetaComplete(count=count, at_us=time.time_ns() // 1_000))
        written = await self._buckets.write(entry, value, after=last.sequence)
        if await self._buckets.created(bucket) != created:
            # It was lost between the look and the write: this one is not complete.
            await self._buckets.write(entry, None, after=written)
            raise StaleWriteError(f"the bucket of {bucket} was made again meanwhile")
        _log.info("bucket complete", bucket=bucket, count=count)
