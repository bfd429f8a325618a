"""Streams, consumers and buckets: made from the data in `contracts.subjects`, and made again when lost.

Declaring is idempotent and may run in any number of rooms at once. Rooms that only use a stream (the
edge) do not declare: they wait with `wait_until_declared`. What must not live here: what travels.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import structlog
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, BadRequestError, NotFoundError

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.subjects import Bucket, Consumer, Stream

_log = structlog.get_logger("sluicegate.bus.declaration")

CHECK_EVERY_S: Final = 5.0
_RETRY_AFTER_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 2.0  # a question that was under way when the connection broke is never answered
_KV_DUPLICATE_WINDOW_S: Final = 120.0


def bucket_stream_name(bucket: str) -> str:
    """Return the name of the stream behind a KV bucket."""
    return f"KV_{bucket}"


def _stream_settings(stream: Stream, replicas: int) -> dict[str, Any]:
    return {
        "name": stream.name,
        "description": stream.description,
        "subjects": list(stream.subjects),
        "retention": RetentionPolicy.LIMITS,
        "storage": StorageType.FILE,
        "discard": DiscardPolicy.NEW,
        "max_age": stream.max_age_s,
        "max_bytes": stream.max_bytes,
        "duplicate_window": stream.duplicate_window_s,
        "num_replicas": replicas,
    }


def _bucket_settings(bucket: Bucket, replicas: int) -> dict[str, Any]:
    # What nats-py's create_key_value sets, so that its own calls and ours agree. No direct reads:
    # those may come from a replica that lags behind.
    ttl_s = bucket.ttl_s or 0.0
    return {
        "name": bucket_stream_name(bucket.name),
        "description": bucket.description,
        "subjects": [f"$KV.{bucket.name}.>"],
        "storage": StorageType.FILE,
        "discard": DiscardPolicy.NEW,
        "max_age": ttl_s,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "deny_delete": True,
        "duplicate_window": min(_KV_DUPLICATE_WINDOW_S, ttl_s or _KV_DUPLICATE_WINDOW_S),
        "num_replicas": replicas,
    }


def _consumer_settings(consumer: Consumer) -> dict[str, Any]:
    return {
        "durable_name": consumer.durable,
        "description": consumer.description,
        "filter_subject": consumer.filter_subject,
        "deliver_policy": DeliverPolicy.ALL,
        "ack_policy": AckPolicy.EXPLICIT,
        "ack_wait": consumer.ack_wait_s,
        "max_deliver": -1,
        "max_ack_pending": consumer.max_ack_pending,
    }


def _drift(wanted: dict[str, Any], actual: object) -> dict[str, Any]:
    """Return the settings that differ; those of ours that are not named stay as the operator set them."""
    return {name: value for name, value in wanted.items() if getattr(actual, name) != value}


async def _declare_stream(js: JetStreamContext, wanted: dict[str, Any]) -> None:
    try:
        info = await js.stream_info(wanted["name"])
    except NotFoundError:
        try:
            await js.add_stream(StreamConfig(**wanted))
        except BadRequestError:
            # Another room made it in between, perhaps of another version: compare with that.
            info = await js.stream_info(wanted["name"])
        else:
            _log.info("stream made", stream=wanted["name"])
            return
    if drift := _drift(wanted, info.config):
        await js.update_stream(info.config.evolve(**drift))
        _log.info("stream updated", stream=wanted["name"], settings=sorted(drift))


async def _declare_consumer(js: JetStreamContext, consumer: Consumer) -> None:
    wanted = _consumer_settings(consumer)
    try:
        info = await js.consumer_info(consumer.stream, consumer.durable)
        config, drift = info.config, _drift(wanted, info.config)
    except NotFoundError:
        config, drift = ConsumerConfig(), wanted
    if drift:
        await js.add_consumer(consumer.stream, config.evolve(**drift))
        _log.info("consumer declared", stream=consumer.stream, consumer=consumer.durable, settings=sorted(drift))


async def declare(
    js: JetStreamContext,
    *,
    streams: Sequence[Stream] = subjects.STREAMS,
    consumers: Sequence[Consumer] = subjects.CONSUMERS,
    buckets: Sequence[Bucket] = subjects.BUCKETS,
    replicas: int = 1,
) -> None:
    """Make what is missing, update what has drifted, leave the rest alone.

    Raises nats-py's errors: `nats.errors.Error` when the server does not answer, `nats.js.errors.APIError`
    when it refuses (a setting that cannot be changed, for example the retention policy). One refusal
    does not keep the others from being declared; the first one is raised at the end.
    """
    steps = [
        *(partial(_declare_stream, js, _stream_settings(stream, replicas)) for stream in streams),
        *(partial(_declare_stream, js, _bucket_settings(bucket, replicas)) for bucket in buckets),
        *(partial(_declare_consumer, js, consumer) for consumer in consumers),
    ]
    refusals = []
    for step in steps:
        try:
            await step()
        except APIError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


async def find_missing(
    js: JetStreamContext,
    *,
    streams: Sequence[Stream] = (),
    consumers: Sequence[Consumer] = (),
    buckets: Sequence[Bucket] = (),
) -> list[str]:
    """Return the names of what is not there, consumers as `<stream>/<durable>`."""
    missing = []
    for name in [stream.name for stream in streams] + [bucket_stream_name(bucket.name) for bucket in buckets]:
        try:
            await js.stream_info(name)
        except NotFoundError:
            missing.append(name)
    for consumer in consumers:
        try:
            await js.consumer_info(consumer.stream, consumer.durable)
        except NotFoundError:
            missing.append(f"{consumer.stream}/{consumer.durable}")
    return missing


async def wait_until_declared(
    connection: Connection,
    *,
    streams: Sequence[Stream] = (),
    consumers: Sequence[Consumer] = (),
    buckets: Sequence[Bucket] = (),
) -> None:
    """Return once all of these exist. For rooms that use but do not declare; waits until then or cancelled."""
    js = connection.jetstream(timeout=_ANSWER_TIMEOUT_S)
    is_reported = False
    while True:
        try:
            if connection.is_connected:
                missing = await find_missing(js, streams=streams, consumers=consumers, buckets=buckets)
                if not missing:
                    return
                if not is_reported:
                    _log.info("waiting for streams", missing=missing)
                    is_reported = True
        except (Error, TimeoutError):
            pass
        await asyncio.sleep(_RETRY_AFTER_S)


class Declarations:
    """Keeps the declared things there: at start, after each reconnect, and every few seconds.

    FastStream's pull loop spins at full speed without a log line while its stream or consumer is
    gone, and an edge's events wait in its journal; both go on as soon as this has made them again.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        streams: Sequence[Stream] = subjects.STREAMS,
        consumers: Sequence[Consumer] = subjects.CONSUMERS,
        buckets: Sequence[Bucket] = subjects.BUCKETS,
        replicas: int = 1,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        """Nothing happens before `run`."""
        self._connection = connection
        self._js = connection.jetstream(timeout=_ANSWER_TIMEOUT_S)
        self._wanted: dict[str, Any] = {"streams": streams, "consumers": consumers, "buckets": buckets}
        self._replicas = replicas
        self._check_every_s = check_every_s
        self._wake = asyncio.Event()
        self._is_thorough = True
        self.declared = asyncio.Event()
        self.remade_count = 0

    @property
    def is_declared(self) -> bool:
        """Whether everything was there at the last look."""
        return self.declared.is_set()

    async def run(self) -> None:
        """Declare, then watch until cancelled. Never raises for an outage or a refusal: it logs and tries again."""
        self._connection.on_connected(self._on_connected)
        while True:
            delay_s = await self._look()
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _on_connected(self) -> None:
        self._is_thorough = True
        self._wake.set()

    async def _look(self) -> float:
        """Declare if needed and return the seconds until the next look."""
        if not self._connection.is_connected:
            return self._check_every_s
        try:
            missing = [] if self._is_thorough else await find_missing(self._js, **self._wanted)
            if missing:
                _log.warning("lost, making it again", missing=missing)
                self.declared.clear()
                self.remade_count += len(missing)
            if missing or self._is_thorough:
                await declare(self._js, **self._wanted, replicas=self._replicas)
                self._is_thorough = False
        except APIError as error:
            self.declared.clear()
            _log.error("declaration refused", error=str(error))
            return self._check_every_s
        except (Error, TimeoutError) as error:
            _log.warning("declaration not answered", error=str(error) or type(error).__name__)
            return _RETRY_AFTER_S
        self.declared.set()
        return self._check_every_s
