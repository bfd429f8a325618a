"""The journal: every admitted and every finished request is on disk before anyone else knows of it.

Rule. A (admitted) is appended before the first byte goes to a provider, F (finished: the usage event)
before the last bytes of the answer are handed to the client's socket, each in the same loop turn as
what follows. So a client never holds a complete answer whose record could be lost with the process.

Mechanics. One file at a time, one `write(2)` per record, no `await`: `admitted` and `finished` are
plain calls of a few µs. Events are handed to the outbox in a lump every 50 ms. A file is closed at
16 MiB or after 60 s; the next one first repeats the A of every open request, so that old files can go.
Files go oldest first: when all their events are acknowledged and ten minutes old, because until then
a lost stream can be filled again from here; earlier when the cap is reached. An event that is not
acknowledged is never deleted.

When the disk is full: `admitted` raises and the edge refuses (policy `refuse`), or lets the request
pass unrecorded (`serve`). `finished` never raises: the event waits in memory, is written or published
as soon as either works, and is counted as dropped only beyond 16 MiB of those.

Limits. Survives `kill -9`, not loss of power (no fsync). The cap counts this life's files only.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.contracts import subjects
from sluicegate.edge.journal.adoption import Adoption
from sluicegate.edge.journal.batches import RECORD_ADMITTED, RECORD_FINISHED, Finished
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.journal.kept_file import KeptFile
from sluicegate.edge.journal.life import Life
from sluicegate.edge.journal.log import FILE_HEADER, LogWriter, encode_record
from sluicegate.edge.journal.outbox import Outbox
from sluicegate.edge.journal.stream_watch import CHECK_EVERY_S, StreamWatch

_log = structlog.get_logger("sluicegate.edge.journal")

_MAX_UNWRITTEN_BYTES: Final = 16 << 20
_HOUSEKEEPING_EVERY_S: Final = 1.0


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times. `on_full`: what happens at the cap, or when the disk takes no more."""

    cap_bytes: int = 1 << 30
    on_full: Literal["refuse", "serve"] = "refuse"
    rotate_bytes: int = 16 << 20
    rotate_s: float = 60.0
    keep_s: float = 600.0
    batch_s: float = 0.05
    adopt_every_s: float = 30.0
    check_stream_every_s: float = CHECK_EVERY_S


class Journal:
    """The journal of one process life. Counters are plain integers, for metrics."""

    def __init__(
        self, root: Path, inc: str, publisher: AckedPublisher, settings: JournalSettings | None = None
    ) -> None:
        """`root` is shared by all edge processes of the host; `inc` is this process's uuid. See `start`."""
        self._root = root
        self._inc = inc
        self._settings = settings or JournalSettings()
        # A file that is written to cannot go, so it must stay small beside the cap.
        self._rotate_bytes = min(self._settings.rotate_bytes, self._settings.cap_bytes // 4)
        self._publisher = publisher
        self._watch = StreamWatch(
            publisher.connection, subjects.USAGE.name, check_every_s=self._settings.check_stream_every_s
        )
        self.outbox = Outbox(inc, publisher, self._watch)
        self.adoption = Adoption(root, inc, self.outbox, self._watch, every_s=self._settings.adopt_every_s)
        self._files: deque[KeptFile] = deque()  # closed ones, oldest first
        self._open: dict[str, bytes] = {}  # encoded A records, ready to be repeated
        self._fresh: list[Finished] = []
        self._unwritten: deque[Finished] = deque()
        self._unwritten_bytes = 0
        self._unwritten_numbers = itertools.count()
        self._is_shedding = False
        self._is_closed = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._errors_seen = 0
        self._last_error = ""
        self.is_full = False
        self.size_bytes = 0
        self.write_errors = 0
        self.unrecorded_admissions = 0
        self.dropped_events = 0
        self.set_aside_files = 0

    async def start(self) -> None:
        """Make and lock this life's directory, start publishing and adopting. Raises `OSError`."""
        self._loop = asyncio.get_running_loop()
        self._life = Life.create(self._root, self._inc)
        self._writer, self._file = self._make_file(1)
        self._publishing = [
            asyncio.create_task(_keep_running(partial(self._watch.run, self._on_stream_changed))),
            asyncio.create_task(_keep_running(self.outbox.run)),
        ]
        self._tending = [
            asyncio.create_task(_keep_running(self.adoption.run)),
            asyncio.create_task(_keep_running(self._keep_house)),
        ]

    async def close(self, deadline_s: float) -> None:
        """Publish what can be within `deadline_s`, and leave the rest on disk for whoever adopts it.

        Nothing may be admitted any more. The directory is removed if nothing in it is needed: as in an
        adoption, that an event was acknowledged is enough. Closing twice is harmless.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await _cancel(self._tending)
        self._flush()
        self._place_unwritten()
        is_confirmed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not is_confirmed:
                    await self.outbox.drain()
                    await self._watch.confirm()
                    is_confirmed = self.outbox.is_empty  # else the stream was made again meanwhile
        await _cancel(self._publishing)
        self._writer.close()
        files = [*self._files, self._file]
        is_published = is_confirmed or not any(file.event_count for file in files)
        if self._open or self.unacked_count or any(file.is_damaged for file in files) or not is_published:
            _log.warning("journal left for adoption", inc=self._inc, events=self.unacked_count, open=self.open_count)
            self._life.release()
        else:
            self._life.remove()

    @property
    def open_count(self) -> int:
        """How many requests were admitted and have not finished."""
        return len(self._open)

    @property
    def unacked_count(self) -> int:
        """How many finished events are not known to be in the stream."""
        in_files = sum(file.unacked_count for file in self._files) + self._file.unacked_count
        return in_files + len(self._fresh) + len(self._unwritten) + self.outbox.unwritten_count

    def admitted(self, request_id: str, body: bytes) -> None:
        """Write down that a request goes out; `body` is its encoded `RequestAdmitted`. Raises `JournalWriteError`."""
        if self._is_shedding:
            self.unrecorded_admissions += 1
            return
        record = encode_record(RECORD_ADMITTED, body)
        try:
            self._writer.append(record)
        except OSError as error:
            self._fail_admission(error)
            return
        self._open[request_id] = record

    def finished(self, request_id: str, tenant: str, body: bytes) -> None:
        """Write down how a request ended; `body` is its encoded `UsageRecorded`. Never raises."""
        self._open.pop(request_id, None)
        if self._is_shedding:
            self._keep_unwritten(tenant, body)
            return
        try:
            offset = self._writer.append(encode_record(RECORD_FINISHED, body))
        except OSError as error:
            self._note_write_error(error)
            self._keep_unwritten(tenant, body)
            return
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(self._settings.batch_s, self._flush)
        self._fresh.append((tenant, body, offset))

    def _fail_admission(self, error: OSError) -> None:
        self._note_write_error(error)
        if self._settings.on_full == "refuse":
            raise JournalWriteError(str(error)) from error
        self.unrecorded_admissions += 1

    def _note_write_error(self, error: OSError) -> None:
        self.write_errors += 1
        self._last_error = str(error)

    def _keep_unwritten(self, tenant: str, body: bytes) -> None:
        if self._unwritten_bytes + len(body) > _MAX_UNWRITTEN_BYTES:
            self.dropped_events += 1
            return
        self._unwritten.append((tenant, body, next(self._unwritten_numbers)))
        self._unwritten_bytes += len(body)

    def _flush(self) -> None:
        """Hand the fresh events to the outbox, and begin a new file if this one is full."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self.outbox.offer(self._file, fresh, self._writer.position)
        if self._writer.position >= self._rotate_bytes:
            self._rotate()

    def _make_file(self, number: int) -> tuple[LogWriter, KeptFile]:
        path = self._life.log_path(number)
        writer = LogWriter(path, self._open.values())
        return writer, KeptFile(number, path, self._loop.time())

    def _rotate(self) -> None:
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self.outbox.offer(self._file, fresh, self._writer.position)
        try:
            writer, file = self._make_file(self._file.number + 1)
        except OSError as error:
            self._note_write_error(error)
            return
        self._writer.close()
        self._file.size_bytes = self._writer.position
        self._file.closed_at = self._loop.time()
        self._files.append(self._file)
        self._writer, self._file = writer, file

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_EVERY_S)
            self._tend()

    def _tend(self) -> None:
        has_records = self._writer.position > len(FILE_HEADER)
        is_old = has_records and self._loop.time() - self._file.opened_at >= self._settings.rotate_s
        if is_old or self._writer.is_closed or self._writer.position >= self._rotate_bytes:
            self._rotate()
        self._place_unwritten()
        failures = self.write_errors - self._errors_seen
        self._errors_seen = self.write_errors
        self._drop_old_files(is_room_needed=failures > 0)
        if failures:
            _log.error("journal cannot write", error=self._last_error, failures=failures)

    def _place_unwritten(self) -> None:
        """Write the events that could not be written, or publish them from memory, whichever works."""
        while self._unwritten and not self._is_shedding:
            tenant, body, _ = self._unwritten[0]
            try:
                offset = self._writer.append(encode_record(RECORD_FINISHED, body))
            except OSError as error:
                self._note_write_error(error)
                break
            self._unwritten.popleft()
            self._unwritten_bytes -= len(body)
            self._fresh.append((tenant, body, offset))
        if self._fresh:
            self._flush()
        if self._unwritten and self.outbox.has_room:
            self.outbox.offer_unwritten(self._unwritten)
            self._unwritten = deque()
            self._unwritten_bytes = 0

    def _drop_old_files(self, *, is_room_needed: bool) -> None:
        kept_since = self._loop.time() - self._settings.keep_s
        size_bytes = self._writer.position + sum(file.size_bytes for file in self._files)
        while self._files:
            oldest = self._files[0]
            if oldest.is_damaged and not self.outbox.holds(oldest):
                with contextlib.suppress(FileNotFoundError):
                    _log.error("journal file kept aside", path=str(self._life.set_aside(oldest.path)))
                self.set_aside_files += 1
            elif oldest.may_go(kept_since) or (
                oldest.unacked_count == 0 and (is_room_needed or size_bytes > self._settings.cap_bytes)
            ):
                oldest.path.unlink(missing_ok=True)
            else:
                break
            size_bytes -= self._files.popleft().size_bytes
        self.size_bytes = size_bytes
        is_over = size_bytes > self._settings.cap_bytes
        self.is_full = is_over and self._settings.on_full == "refuse"
        self._is_shedding = is_over and self._settings.on_full == "serve"

    def _on_stream_changed(self) -> None:
        self._flush()
        self.outbox.republish([*self._files, self._file], self._writer.position)


async def _keep_running(run: Callable[[], Awaitable[None]]) -> None:
    """Run for ever: a fault in here must not silently end the publishing of usage."""
    while True:
        try:
            await run()
        except Exception:  # noqa: BLE001 - whatever it is, the next try may work, and ending is worse
            _log.exception("journal task failed, starting it again")
        await asyncio.sleep(_HOUSEKEEPING_EVERY_S)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
