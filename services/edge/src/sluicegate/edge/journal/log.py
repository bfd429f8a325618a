"""The record log: an append-only file of checksummed records. It knows neither usage nor NATS.

Format, little-endian: `SGRLOG`, u16 version, then records of u32 body length, u32 CRC-32 over type
and body, u8 type, body. There is no index and no end mark: a file ends where its records end.

Writing. One record is one `write(2)` to a file opened for appending, so a process killed at any
instant leaves whole records and at most one torn one, at the end. A short write (the disk is full)
is cut back with `ftruncate` before anything else is written: what is in the file stays valid.

Reading stops at the first bad record, because nothing says where the next one begins. What is bad
is judged by what follows: at the very end it is *torn*, the trace of a crash, and nothing is missing
that was ever promised; with a whole record behind it the file is *damaged*, and worth keeping.

Limits: data reaches the page cache, not the platter; loss of power may take the last seconds.
"""

import errno
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, Literal, NamedTuple

MAGIC: Final = b"SGRLOG"
VERSION: Final = 1
FILE_HEADER: Final = MAGIC + VERSION.to_bytes(2, "little")
MAX_BODY_BYTES: Final = 16 << 20
CHUNK_BYTES: Final = 256 << 10

_RECORD_HEADER: Final = Struct("<IIB")
RECORD_HEADER_BYTES: Final = _RECORD_HEADER.size
# How far behind a bad record a whole one is looked for: beyond the longest body anyone writes here.
_RESYNC_WINDOW_BYTES: Final = 64 << 10

# CRC-32 of each type byte: the checksum of a body continues from there.
_CRC_OF_TYPE: Final = tuple(zlib.crc32(bytes((value,))) for value in range(256))

_pack = _RECORD_HEADER.pack
_unpack_from = _RECORD_HEADER.unpack_from
_crc32 = zlib.crc32
_write = os.write

EndState = Literal["reading", "clean", "torn", "damaged"]


class Record(NamedTuple):
    """One record: where it begins in the file, its type, its body."""

    offset: int
    type: int
    body: bytes

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + RECORD_HEADER_BYTES + len(self.body)


def encode_record(record_type: int, body: bytes) -> bytes:
    """Return the bytes of one record."""
    return _pack(len(body), _crc32(body, _CRC_OF_TYPE[record_type]), record_type) + body


class LogWriter:
    """Appends to one new file. Not shared: one process, one thread."""

    __slots__ = ("_fd", "path", "position")

    def __init__(self, path: Path, first: Iterable[bytes] = ()) -> None:
        """Make the file with the encoded records `first` in it, all or nothing; raises `OSError`. It must not exist."""
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        head = FILE_HEADER + b"".join(first)
        self.position = len(head)
        try:
            self._write_whole(head)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be appended any more."""
        return self._fd < 0

    def append(self, record: bytes) -> int:
        """Append one encoded record and return its offset. Raises `OSError`; the file is valid all the same."""
        written = _write(self._fd, record)
        offset = self.position
        if written != len(record):
            self._cut_back()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.position = offset + written
        return offset

    def close(self) -> None:
        """Close the file; later appends fail with EBADF."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _write_whole(self, head: bytes) -> None:
        if _write(self._fd, head) != len(head):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.position)
        except OSError:
            # The torn record must stay the last thing in this file.
            self.close()
            raise


class LogReader:
    """Reads whole records, a chunk at a time so that a caller on an event loop can yield in between.

    `end_state` says after the last chunk why there are no more.
    """

    __slots__ = ("_fd", "_start", "_stop", "end_state", "path")

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        """Open `path` to read the records in [start, stop); by default all. Raises `OSError`."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = start
        self._stop = os.fstat(self._fd).st_size if stop is None else stop
        self.end_state: EndState = "reading"

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def chunks(self) -> Iterator[list[Record]]:
        """Yield non-empty lists of records, each from about `CHUNK_BYTES` of file, in order."""
        position = self._start
        if position < len(FILE_HEADER):
            if not self._has_file_header():
                return
            position = len(FILE_HEADER)
        wanted = CHUNK_BYTES
        while position < self._stop:
            buffer = os.pread(self._fd, min(wanted, self._stop - position), position)
            records, used, wanted = _parse(buffer, position)
            if records:
                yield records
                position += used
            elif wanted <= len(buffer) or position + wanted > self._stop:
                self.end_state = "damaged" if self._has_record_behind(position) else "torn"
                return
        self.end_state = "clean"

    def next_chunk(self) -> list[Record]:
        """Return the first chunk, [] at the end, and close the file: for readers that keep the position themselves."""
        try:
            return next(self.chunks(), [])
        finally:
            self.close()

    def records(self) -> Iterator[Record]:
        """Yield all records, then close the file."""
        try:
            for chunk in self.chunks():
                yield from chunk
        finally:
            self.close()

    def _has_file_header(self) -> bool:
        head = os.pread(self._fd, len(FILE_HEADER), 0)
        if head == FILE_HEADER:
            return True
        # Shorter: killed before the header was out. Another magic or a later version: not ours to judge.
        self.end_state = "torn" if FILE_HEADER.startswith(head) else "damaged"
        return False

    def _has_record_behind(self, position: int) -> bool:
        window = os.pread(self._fd, _RESYNC_WINDOW_BYTES + RECORD_HEADER_BYTES, position + 1)
        for index in range(len(window) - RECORD_HEADER_BYTES + 1):
            length, crc, record_type = _unpack_from(window, index)
            begin = position + 1 + index + RECORD_HEADER_BYTES
            if length > MAX_BODY_BYTES or begin + length > self._stop:
                continue
            body = window[index + RECORD_HEADER_BYTES : index + RECORD_HEADER_BYTES + length]
            if len(body) < length:
                body = os.pread(self._fd, length, begin)
            if _crc32(body, _CRC_OF_TYPE[record_type]) == crc:
                return True
        return False


def _parse(buffer: bytes, position: int) -> tuple[list[Record], int, int]:
    """Return the whole records at the start of `buffer`, the bytes they take, and the bytes wanted next.

    Without a record: wanted ≤ len(buffer) means that the first one is bad, more that it is longer.
    """
    records: list[Record] = []
    at, size = 0, len(buffer)
    wanted = CHUNK_BYTES
    while size - at >= RECORD_HEADER_BYTES:
        length, crc, record_type = _unpack_from(buffer, at)
        end = at + RECORD_HEADER_BYTES + length
        if length > MAX_BODY_BYTES:
            return records, at, 0 if at == 0 else CHUNK_BYTES
        if end > size:
            wanted = max(CHUNK_BYTES, end - at)
            break
        body = buffer[at + RECORD_HEADER_BYTES : end]
        if _crc32(body, _CRC_OF_TYPE[record_type]) != crc:
            return records, at, 0 if at == 0 else CHUNK_BYTES
        records.append(Record(position + at, record_type, body))
        at = end
    if not records and size < RECORD_HEADER_BYTES:
        wanted = RECORD_HEADER_BYTES if size else 0
    return records, at, wanted
