"""The KV buckets as the relay sees them: the last word at a place, and writes that only follow on it.

Every write names the sequence it follows. A relay that was held up, lost its lock and wakes with an old
state is refused by the server, so it cannot bring a revoked key back.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy, Header
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KV_DEL, KV_OP

from sluicegate.admin.projection.entries import STORED_AS, BucketName, Entry
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import bucket_stream_name

_ANSWER_WITHIN_S: Final = 2.0
_SILENCE_S: Final = 10.0
_NO_MESSAGE: Final = 10037
_WRONG_LAST_SEQUENCE: Final = 10071
_DELETION: Final = {KV_OP: KV_DEL}
# Markers of deletions go after this; edges resume after an outage of at most half a minute.
_MARKER_AGE: Final = timedelta(days=1)


class StaleWriteError(Exception):
    """Somebody wrote there after the state was looked up."""


class Last(NamedTuple):
    """The last word at a place. Sequence 0: nothing was ever said; value None: nothing stands there."""

    sequence: int
    value: bytes | None


@dataclass
class Contents:
    """All that stands in a bucket, and the markers of old deletions (name, sequence)."""

    created: datetime
    values: dict[str, bytes] = field(default_factory=dict)
    markers: list[tuple[str, int]] = field(default_factory=list)


class Buckets:
    """Both buckets. Raises nats-py's errors: `Error` and TimeoutError when NATS does not answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=_ANSWER_WITHIN_S)

    @property
    def is_connected(self) -> bool:
        return self._connection.is_connected

    async def last(self, entry: Entry) -> Last:
        """Return the last word, asked of the stream's leader."""
        try:
            message = await self._js.get_last_msg(_stream(entry.bucket), entry.subject)
        except NotFoundError as error:
            if error.err_code == _NO_MESSAGE:
                return Last(0, None)
            raise
        is_deletion = KV_OP in (message.headers or {})
        return Last(message.seq or 0, None if is_deletion else message.data or b"")

    async def write(self, entry: Entry, value: bytes | None, *, after: int) -> int:
        """Put `value`, or delete for None, if sequence `after` is still the last word; return the new sequence.

        Raises StaleWriteError if it is not.
        """
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(after)}
        try:
            ack = await self._js.publish(
                entry.subject,
                b"" if value is None else value,
                stream=_stream(entry.bucket),
                headers=headers | (_DELETION if value is None else {}),
            )
        except APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise StaleWriteError(entry.name) from None
            raise
        return ack.seq

    async def created(self, bucket: BucketName) -> datetime:
        """Return when the bucket was made: it tells a bucket from another one of the same name."""
        info = await self._js.stream_info(_stream(bucket))
        assert info.created is not None
        return info.created

    async def contents(self, bucket: BucketName) -> Contents:
        """Read a bucket whole; raise TimeoutError when nothing more comes before its end."""
        reading = _Reading(Contents(await self.created(bucket)), Entry(bucket, "").subject)
        subscription = await self._js.subscribe(
            Entry(bucket, ">").subject,
            stream=_stream(bucket),
            cb=reading.take,
            ordered_consumer=True,
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            inactive_threshold=_SILENCE_S,
        )
        try:
            info = await subscription.consumer_info()
            if not info.num_pending and (info.delivered is None or not info.delivered.consumer_seq):
                return reading.contents
            await reading.finish()
        finally:
            with contextlib.suppress(Error):  # the connection may be gone, and the subscription with it
                await subscription.unsubscribe()
        return reading.contents

    async def forget_marker(self, bucket: BucketName, name: str, sequence: int) -> None:
        """Remove the marker of a deletion, and nothing that was written after it."""
        subject = Entry(bucket, name).subject
        await self._js.purge_stream(_stream(bucket), seq=sequence + 1, subject=subject)


class _Reading:
    """Takes the messages of a read. Not nats-py's watcher: it hands over one by one, at many times the cost."""

    def __init__(self, contents: Contents, prefix: str) -> None:
        self.contents = contents
        self._prefix_length = len(prefix)
        self._old = datetime.now(UTC) - _MARKER_AGE
        self._count = 0
        self._ended = asyncio.Event()

    async def take(self, message: Msg) -> None:
        name = message.subject[self._prefix_length :]
        metadata = message.metadata
        if message.headers is None or KV_OP not in message.headers:
            self.contents.values[name] = message.data
        elif metadata.timestamp < self._old:
            self.contents.markers.append((name, metadata.sequence.stream))
        self._count += 1
        if not metadata.num_pending:
            self._ended.set()

    async def finish(self) -> None:
        """Return when all was taken."""
        seen = -1
        while not self._ended.is_set():
            if self._count == seen:
                raise TimeoutError("a bucket was not read to its end")
            seen = self._count
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_S):
                    await self._ended.wait()


def _stream(bucket: BucketName) -> str:
    return bucket_stream_name(STORED_AS[bucket])
