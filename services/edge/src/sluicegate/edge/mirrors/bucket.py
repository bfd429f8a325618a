"""Keeps a view equal to one KV bucket. What the entries mean is the view's business.

Rules (stream order is the truth, no revisions are compared):
- A full read goes into a new dict, which replaces the view's in one step, and only once the relay's
  `meta.complete` is in it: an empty or half-filled bucket must not become 401 for everybody. A read that
  ends without it goes on, following the stream, until it comes.
- After that each change is applied as it arrives.
- Every few seconds, and after each reconnect, the stream's creation time and last sequence are compared
  with what was applied. Any doubt (made again, went back, behind, silent, a message lost) is a full read.
- "Applied" is the last sequence delivered, or the stream's last sequence before a full read began, if that
  is higher: a key's marker that was purged leaves a sequence that nobody will ever deliver.
- After a short outage of the same stream the feed resumes at the last message it applied. That message must
  come again with the same time, otherwise the stream has another past, or the key has changed since: a full
  read. "Short" means younger than any delete marker that someone may have purged meanwhile.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol

from nats.aio.subscription import Subscription
from nats.errors import Error
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import bucket_stream_name
from sluicegate.contracts.catalogue import META_COMPLETE
from sluicegate.edge.mirrors.tail import Change, StreamTail
from sluicegate.runtime.logs import get_logger

CHECK_EVERY_S: Final = 5.0
RESUME_WITHIN_S: Final = 30.0
# How long messages that the stream already has may be on their way before they count as missed.
_ARRIVAL_S: Final = 1.0
_ARRIVAL_POLL_S: Final = 0.02
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
_API_TIMEOUT_S: Final = 2.0

BucketName = Literal["keys", "catalogue"]
_log = get_logger(__name__)


class View(Protocol):
    """What the mirrored entries are for. Neither call may block or raise; a bad record is the view's to count."""

    def replace(self, bucket: BucketName, entries: dict[str, bytes]) -> None:
        """Swap all entries of a bucket at once."""

    def apply(self, bucket: BucketName, key: str, value: bytes | None) -> None:
        """Take one change; None: the entry is gone."""


class _DoubtError(Exception):
    """What was read can no longer be trusted. `must_read`: resuming will not do, only a full read."""

    def __init__(self, reason: str, *, must_read: bool = False) -> None:
        super().__init__(reason)
        self.must_read = must_read


class _Place(NamedTuple):
    """A message that was applied, by which a stream is recognised."""

    sequence: int
    at_ns: int


@dataclass
class _FullRead:
    """A full read under way."""

    entries: dict[str, bytes] = field(default_factory=dict)
    place: _Place | None = None
    is_at_end: bool = False
    has_complete: bool = False


class BucketFeed:
    """Reads one bucket for ever (`run`). `on_moved` is called when `announced` has changed."""

    def __init__(
        self,
        connection: Connection,
        stored_as: str,
        name: BucketName,
        view: View,
        on_moved: Callable[[], None],
        *,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        """`stored_as`: the bucket's name in NATS. Nothing happens before `run`."""
        self.applied = 0
        self.is_loaded = False
        self.unsure_because: str | None = "not read yet"
        self.checked_at_s = time.monotonic()
        self.full_reads = 0
        self.changes = 0
        self._connection = connection
        self._js = connection.jetstream(timeout=_API_TIMEOUT_S)
        self._bucket = stored_as
        self._name: BucketName = name
        self._view = view
        self._on_moved = on_moved
        self._check_every_s = check_every_s
        self._wake = asyncio.Event()
        self._retry_s = _RETRY_FIRST_S
        self._tail: StreamTail | None = None
        self._life: asyncio.Timeout | None = None
        # The stream that was read, and how far.
        self._created: datetime | None = None
        self._place: _Place | None = None
        self._last_heard_s = -math.inf
        # The present life: a full read, or a resume whose first message is awaited; done at `_target`.
        self._reading: _FullRead | None = None
        self._expected: _Place | None = None
        self._target = 0

    @property
    def announced(self) -> int:
        """The sequence to announce: 0 while it is not sure that the view holds this stream's state."""
        return self.applied if self.unsure_because is None else 0

    async def run(self) -> None:
        """Follow the bucket until cancelled, whatever happens to it or to NATS."""
        self._connection.on_connected(lambda: self.doubt("connected anew"))
        while True:
            self._wake.clear()
            try:
                await self._live()
            except _DoubtError as doubt:
                if doubt.must_read:
                    self._place = None
                self._set_unsure(str(doubt))
            except NotFoundError:
                self._set_unsure("the bucket does not exist")
            except (Error, TimeoutError, OSError) as error:
                if not self._wake.is_set():
                    self._set_unsure(f"no answer: {str(error) or type(error).__name__}")
            except Exception as error:  # noqa: BLE001 - the feed outlives its own faults; logged below
                _log.exception("mirror failed", bucket=self._bucket)
                self._place = None
                self._set_unsure(f"failed: {error}")
            await self._wait_to_retry()

    def doubt(self, reason: str) -> None:
        """Stop trusting what is read, and look again at once. For reconnects and errors of the connection."""
        self._set_unsure(reason)
        if self._tail is not None:
            self._tail.end(reason)
        # Also when it waits for an answer that was lost with the connection.
        if self._life is not None and not self._wake.is_set():
            self._life.reschedule(0)
        self._wake.set()

    def doubt_if_dropped(self, subscription: Subscription) -> None:
        """Doubt if it is this bucket's subscription that nats-py dropped a message of, as "slow consumer"."""
        if self._tail is not None and self._tail.subscription is subscription:
            self.doubt("a message was dropped as slow consumer")

    async def _live(self) -> None:
        """Follow the bucket until that ends by an exception; TimeoutError if it was a doubt."""
        async with asyncio.timeout(None) as life:
            self._life = life
            try:
                await self._follow()
            finally:
                self._life = None

    async def _follow(self) -> None:
        """One life: read or resume, then follow. It ends by an exception only."""
        if not self._connection.is_connected:
            raise _DoubtError("NATS is away")
        start = self._begin(await self._stream_info())
        self._tail = StreamTail(self._connection, self._bucket, start, self._take, self._take_idleness)
        try:
            async with self._tail as tail:
                if tail.pending_at_start == 0:
                    self._take_idleness()
                while True:
                    await asyncio.wait({tail.ended}, timeout=self._check_every_s)
                    if tail.ended.done():
                        raise _DoubtError(tail.ended.result())
                    await self._check(tail)
        finally:
            self._tail = None

    def _begin(self, info: StreamInfo) -> int | None:
        """Decide between a resume and a full read; return where the tail starts."""
        self._target = info.state.last_seq
        is_same = info.created == self._created and self._target >= self.applied
        is_recent = time.monotonic() - self._last_heard_s <= RESUME_WITHIN_S
        if self._place is not None and is_same and is_recent:
            self._reading, self._expected = None, self._place
            return self._place.sequence
        self._reading, self._expected = _FullRead(), None
        self._created, self._place = info.created, None
        return None

    def _take(self, change: Change) -> None:
        self._last_heard_s = time.monotonic()
        if self._reading is not None:
            self._collect(self._reading, change)
        elif self._expected is not None:
            self._recognise(self._expected, change)
        else:
            self._apply(change)

    def _take_idleness(self) -> None:
        """Nothing waits in the stream: whatever was being read has come to its end."""
        if self._reading is not None:
            self._reading.is_at_end = True
            self._finish_reading(self._reading)
        elif self._expected is not None:
            self._must_read("the last message applied is not in the stream any more")
        elif self.unsure_because is not None:
            self._set_sure(max(self.applied, self._target))

    def _collect(self, reading: _FullRead, change: Change) -> None:
        reading.place = _Place(change.sequence, change.at_ns)
        if change.key == META_COMPLETE:
            reading.has_complete = change.value is not None
        elif change.value is None:
            reading.entries.pop(change.key, None)
        else:
            reading.entries[change.key] = change.value
        if self._is_at_end(change):
            reading.is_at_end = True
        if reading.is_at_end:
            self._finish_reading(reading)

    def _finish_reading(self, reading: _FullRead) -> None:
        if not reading.has_complete:
            self._set_unsure("the bucket is not complete yet")
            return
        self._view.replace(self._name, reading.entries)
        self._reading, self._place = None, reading.place
        self.full_reads += 1
        self.is_loaded = True
        applied = max(reading.place.sequence if reading.place else 0, self._target)
        _log.info("mirror read", bucket=self._bucket, entries=len(reading.entries), sequence=applied)
        self._set_sure(applied)

    def _recognise(self, expected: _Place, change: Change) -> None:
        if (change.sequence, change.at_ns) != expected:
            self._must_read("the last message applied is not in the stream any more")
            return
        self._expected = None
        if self._is_at_end(change):
            self._set_sure(max(self.applied, self._target))

    def _apply(self, change: Change) -> None:
        if change.key != META_COMPLETE:
            self._show(change)
        self.changes += 1
        self._place = _Place(change.sequence, change.at_ns)
        self.applied = change.sequence
        if self.unsure_because is None:
            self._on_moved()
        elif self._is_at_end(change):
            self._set_sure(max(self.applied, self._target))

    def _show(self, change: Change) -> None:
        try:
            self._view.apply(self._name, change.key, change.value)
        except Exception:  # noqa: BLE001 - logged below
            # One record must not stop the others: not applying a revocation would be far worse.
            _log.exception("mirror could not apply a record", bucket=self._bucket, sequence=change.sequence)

    def _is_at_end(self, change: Change) -> bool:
        return change.pending == 0 or change.sequence >= self._target

    async def _check(self, tail: StreamTail) -> None:
        """Compare with the stream. Leaves what the tail itself notices to the caller."""
        applied = self.applied
        info = await self._stream_info()
        if info.created != self._created:
            raise _DoubtError("the bucket was made again", must_read=True)
        if self._reading is not None:
            return
        if info.state.last_seq < applied or info.state.messages == 0:
            raise _DoubtError("the stream lost what was applied", must_read=True)
        if await self._has_arrived(info.state.last_seq, tail):
            self.checked_at_s = self._last_heard_s = time.monotonic()

    async def _has_arrived(self, sequence: int, tail: StreamTail) -> bool:
        """Wait until `sequence` was applied, as long as messages come in; False if the tail ended meanwhile."""
        applied, quiet_since_s = self.applied, time.monotonic()
        while self.applied < sequence:
            if self.applied != applied:
                applied, quiet_since_s = self.applied, time.monotonic()
            elif time.monotonic() - quiet_since_s > _ARRIVAL_S:
                raise _DoubtError("messages of the stream did not arrive", must_read=True)
            await asyncio.wait({tail.ended}, timeout=_ARRIVAL_POLL_S)
            if tail.ended.done():
                return False
        return True

    async def _stream_info(self) -> StreamInfo:
        return await self._js.stream_info(bucket_stream_name(self._bucket))

    def _must_read(self, reason: str) -> None:
        self._place = None
        self.doubt(reason)

    def _set_sure(self, applied: int) -> None:
        self.applied = applied
        self.unsure_because = None
        self.checked_at_s = time.monotonic()
        self._retry_s = _RETRY_FIRST_S
        self._on_moved()

    def _set_unsure(self, reason: str) -> None:
        if reason != self.unsure_because:
            log = _log.warning if self.is_loaded else _log.info
            log("mirror is not sure", bucket=self._bucket, reason=reason)
            self._on_moved()
        self.unsure_because = reason

    async def _wait_to_retry(self) -> None:
        try:
            async with asyncio.timeout(self._retry_s):
                await self._wake.wait()
        except TimeoutError:
            self._retry_s = min(self._retry_s * 2, _RETRY_MAX_S)
