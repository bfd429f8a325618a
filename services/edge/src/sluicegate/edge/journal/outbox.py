"""The way of finished events from the log to the stream: batches in flight, and ranges still to be read.

Events that were just finished are sent from memory. While that does not work (NATS is away, the stream
is full) only *ranges* of the log are remembered, and read back when their turn comes: memory stays
bounded however long it lasts. The same ranges serve when a lost stream has to be filled again.

Files are not owned here: the journal decides which are kept, a `KeptFile` counts what is not acknowledged.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from sluicegate.bus.acked_publisher import AckedPublisher, MessageTooLargeError, PublishError
from sluicegate.edge.journal.batches import Batch, Finished, cut, finished_among
from sluicegate.edge.journal.kept_file import KeptFile
from sluicegate.edge.journal.log import LogReader, Record
from sluicegate.edge.journal.stream_watch import StreamWatch

_log = structlog.get_logger("sluicegate.edge.journal.outbox")

MAX_IN_FLIGHT: Final = 8
_MAX_READY_BYTES: Final = 4 << 20
_FAILED_WAIT_S: Final = 1.0


class _Range:
    """A part of a file whose F records wait to be published; `end` grows while it is the newest."""

    __slots__ = ("end", "file", "start")

    def __init__(self, file: KeptFile, start: int, end: int) -> None:
        self.file = file
        self.start = start
        self.end = end


class _Ready(msgspec.Struct, frozen=True, eq=False):
    batch: Batch
    file: KeptFile | None  # None: the event never made it into a file
    generation: int


class Outbox:
    """Publishes what the journal hands over. Counters are plain integers, for metrics."""

    def __init__(self, inc: str, publisher: AckedPublisher, watch: StreamWatch) -> None:
        """Nothing is sent before `run`."""
        self._inc = inc
        self._publisher = publisher
        self._watch = watch
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._ready: deque[_Ready] = deque()
        self._ready_bytes = 0
        self._ranges: deque[_Range] = deque()
        self._sending: dict[asyncio.Task[None], _Ready] = {}
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self.unwritten_count = 0
        self.published_events = 0
        self.published_batches = 0
        self.republished_events = 0
        self.bad_records = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not (self._ready or self._ranges or self._sending)

    @property
    def has_room(self) -> bool:
        """Whether events may be handed over in memory."""
        return self._publisher.is_connected and self._ready_bytes <= _MAX_READY_BYTES

    def holds(self, file: KeptFile) -> bool:
        """Whether anything of `file` waits or is in flight."""
        return (
            any(part.file is file for part in self._ranges)
            or any(ready.file is file for ready in self._ready)
            or any(ready.file is file for ready in self._sending.values())
        )

    def offer(self, file: KeptFile, finished: Sequence[Finished], end: int) -> None:
        """Take over events that are the newest of `file`, whose records end at `end`."""
        file.event_count += len(finished)
        file.unacked_count += len(finished)
        if self._ranges or not self.has_room:
            self._remember(file, finished[0][2], end)
        else:
            self._make_ready(file, finished)
        self._wake.set()

    def offer_unwritten(self, finished: Sequence[Finished]) -> None:
        """Take over events that could not be written to a file; `offset`: any number, never used twice."""
        self.unwritten_count += len(finished)
        for batch in cut(f"{self._inc}.memory", finished):
            self._add(batch, None)
        self._wake.set()

    def republish(self, files: Sequence[KeptFile], end: int) -> None:
        """Publish everything in `files` again; the last one's records end at `end`."""
        unwritten = [ready for ready in self._ready if ready.file is None]
        self._ready = deque(unwritten)
        self._ready_bytes = sum(len(ready.batch.payload) for ready in unwritten)
        self._ranges.clear()
        for file in files:
            self.republished_events += file.event_count - file.unacked_count
            file.unacked_count = file.event_count
            if file.event_count:
                self._ranges.append(_Range(file, 0, end if file is files[-1] else file.size_bytes))
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled; batches in flight are then given up, their events stay in their files."""
        await self._watch.seen.wait()
        try:
            while True:
                if self._ready:
                    await self._slots.acquire()
                    self._send_next()
                elif self._ranges:
                    await self._read_back()
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except asyncio.CancelledError:
            sending = list(self._sending)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            raise

    async def send(self, batch: Batch) -> None:
        """Send a batch of somebody else's, in turn with ours, until acknowledged. Raises `PublishError`."""
        await self._watch.seen.wait()
        async with self._slots:
            await self._publisher.publish(batch.subject, batch.payload, batch.headers)
        self._count(batch)

    async def drain(self) -> None:
        """Return when nothing waits and nothing is in flight."""
        while not self.is_empty:
            self._settled.clear()
            await self._settled.wait()

    def _make_ready(self, file: KeptFile, finished: Sequence[Finished]) -> None:
        for batch in cut(f"{self._inc}.{file.number}", finished):
            self._add(batch, file)

    def _add(self, batch: Batch, file: KeptFile | None) -> None:
        self._ready.append(_Ready(batch, file, self._watch.generation))
        self._ready_bytes += len(batch.payload)

    def _remember(self, file: KeptFile, start: int, end: int) -> None:
        # While any range waits, all newer events are remembered too: so between the end of the
        # newest range and `start` there is no event, and it can simply grow.
        if self._ranges and self._ranges[-1].file is file:
            self._ranges[-1].end = end
        else:
            self._ranges.append(_Range(file, start, end))

    async def _read_back(self) -> None:
        """Turn the next chunk of the oldest range into batches. In a thread: it may lie on a slow disk."""
        part, generation = self._ranges[0], self._watch.generation
        end = part.end
        records, is_bad = await asyncio.to_thread(_read_chunk, part.file.path, part.start, end)
        if generation != self._watch.generation:
            return  # all ranges were replaced meanwhile
        finished, bad_count = finished_among(records)
        bad_count += is_bad
        if bad_count:
            self.bad_records += bad_count
            part.file.is_damaged = True
            _log.error("journal file is damaged", path=str(part.file.path), offset=part.start)
        part.start = records[-1].end if records else end
        self._make_ready(part.file, finished)
        if part.start >= part.end:
            self._ranges.popleft()
            self._settled.set()

    def _send_next(self) -> None:
        if not self._ready:  # cleared while we waited for the slot
            self._slots.release()
            return
        ready = self._ready.popleft()
        self._ready_bytes -= len(ready.batch.payload)
        task = asyncio.create_task(self._deliver(ready))
        self._sending[task] = ready
        task.add_done_callback(self._on_sent)

    async def _deliver(self, ready: _Ready) -> None:
        batch, file = ready.batch, ready.file
        try:
            await self._publisher.publish(batch.subject, batch.payload, batch.headers)
        except PublishError as error:
            # Too large for the server, or the connection was closed for good.
            _log.error("usage events cannot be published", error=str(error), message_id=batch.message_id)
            if file is not None and isinstance(error, MessageTooLargeError):
                file.is_damaged = True
            return
        except Exception:  # noqa: BLE001 - see below
            # Whatever it was, the events must not be forgotten; waiting first, so that it cannot spin.
            _log.exception("publishing usage events failed, trying again", message_id=batch.message_id)
            await asyncio.sleep(_FAILED_WAIT_S)
            self._ready.append(ready)
            self._ready_bytes += len(batch.payload)
            self._wake.set()
            return
        self._count(batch)
        if file is None:
            self.unwritten_count -= batch.event_count
        elif ready.generation == self._watch.generation:
            file.unacked_count -= batch.event_count

    def _count(self, batch: Batch) -> None:
        self.published_events += batch.event_count
        self.published_batches += 1

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._slots.release()
        self._settled.set()


def _read_chunk(path: Path, start: int, end: int) -> tuple[list[Record], bool]:
    """Return the next records of [start, end), and whether something bad is in their place."""
    try:
        reader = LogReader(path, start=start, stop=end)
        records = reader.next_chunk()
    except OSError:
        return [], True
    return records, reader.end_state in {"torn", "damaged"}
