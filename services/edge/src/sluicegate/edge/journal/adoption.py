"""Publishing what dead processes of this host left behind: their events, and the requests they broke off.

A directory whose lock is free belongs to nobody alive. Its events are all published again, as most
readers will have them already and recognise them by request id. A request that was admitted and never
finished becomes an event with the outcome `interrupted`. Only when everything is acknowledged, by one
and the same stream, the directory goes.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

import msgspec
import structlog

from sluicegate.bus.acked_publisher import MessageTooLargeError, PublishError
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.money import Price, cost_nano_usd
from sluicegate.contracts.usage import RequestAdmitted, UsageRecorded
from sluicegate.edge.journal.batches import RECORD_ADMITTED, RECORD_FINISHED, Finished, cut, decode_owner
from sluicegate.edge.journal.life import Life, foreign_lives
from sluicegate.edge.journal.log import LogReader, Record
from sluicegate.edge.journal.outbox import Outbox
from sluicegate.edge.journal.stream_watch import StreamWatch

_log = structlog.get_logger("sluicegate.edge.journal.adoption")

# What the client of a process that died got is unknown: perhaps half a stream under 200, mostly a reset
# connection. 500 counts it among the gateway's own failures; 499 would blame the client.
INTERRUPTED_STATUS: Final = 500
_YIELD_EVERY: Final = 100

_decode_admitted = msgspec.json.Decoder(RequestAdmitted).decode


def interrupted(admitted: RequestAdmitted) -> UsageRecorded:
    """Return the event of a request whose process died: its input was sent, of its output nothing is known.

    Charged is the input estimate alone, never what was reserved. It holds no time of now, so that who
    adopts the same directory again makes the same bytes.
    """
    price = admitted.price
    cost = None
    if price is not None:
        input_price = Price(version=price.version, valid_from_us=0, input=price.input, output=0)
        cost = cost_nano_usd(input_price, input_tokens=admitted.input_tokens, output_tokens=0)
    return UsageRecorded(
        request_id=admitted.request_id,
        started_at_us=admitted.started_at_us,
        tenant=admitted.tenant,
        department=admitted.department,
        team=admitted.team,
        key=admitted.key,
        endpoint=admitted.endpoint,
        requested_model=admitted.requested_model,
        provider=admitted.provider,
        upstream_model=admitted.upstream_model,
        streamed=admitted.streamed,
        status=INTERRUPTED_STATUS,
        outcome="interrupted",
        input_tokens=admitted.input_tokens,
        usage_source="estimated",
        cost_nano_usd=cost,
        cost_source="unpriced" if cost is None else "priced",
        price_version=None if price is None else price.version,
        end_user=admitted.end_user,
        edge=admitted.edge,
        traceparent=admitted.traceparent,
    )


class Adoption:
    """Looks for dead processes' directories at start and every `every_s`. Counters are plain integers."""

    def __init__(self, root: Path, inc: str, outbox: Outbox, watch: StreamWatch, *, every_s: float) -> None:
        """`root` holds the directories, `inc` names our own. Nothing happens before `run`."""
        self._root = root
        self._inc = inc
        self._outbox = outbox
        self._watch = watch
        self._every_s = every_s
        self.adopted_lives = 0
        self.adopted_events = 0
        self.interrupted_requests = 0
        self.bad_records = 0
        self.set_aside_files = 0

    async def run(self) -> None:
        """Adopt until cancelled."""
        while True:
            await self.adopt_all()
            await asyncio.sleep(self._every_s)

    async def adopt_all(self) -> None:
        """Adopt every directory whose process is dead, one after another."""
        for path in foreign_lives(self._root, self._inc):
            life = Life.take(path)
            if life is None:
                continue
            try:
                await self._adopt(life)
            except (OSError, PublishError) as error:
                _log.error("adoption failed, trying again later", life=life.inc, error=str(error))
            finally:
                life.release()

    async def _adopt(self, life: Life) -> None:
        while True:
            generation = self._watch.generation
            reading = _LifeReading(life, self._outbox)
            await reading.publish()
            await self._watch.confirm()
            if generation == self._watch.generation:
                break
        for log in sorted(reading.damaged):
            _log.error("journal file kept aside", path=str(life.set_aside(log)))
        life.remove()
        self.adopted_lives += 1
        self.adopted_events += reading.event_count
        self.interrupted_requests += reading.interrupted_count
        self.bad_records += reading.bad_records
        self.set_aside_files += len(reading.damaged)
        if reading.event_count or reading.interrupted_count:
            _log.info(
                "journal adopted", life=life.inc, events=reading.event_count, interrupted=reading.interrupted_count
            )


class _LifeReading:
    """One pass over all files of a life. Memory: the admissions still open, and one chunk of events."""

    def __init__(self, life: Life, outbox: Outbox) -> None:
        self._life = life
        self._outbox = outbox
        self._open: dict[str, tuple[bytes, Path]] = {}
        self.damaged: set[Path] = set()
        self.event_count = 0
        self.interrupted_count = 0
        self.bad_records = 0

    async def publish(self) -> None:
        """Publish all events, then the requests broken off; return when all is acknowledged."""
        for number, log in self._life.logs():
            await self._publish_file(number, log)
        await self._publish_interrupted()

    async def _publish_file(self, number: int, log: Path) -> None:
        position = 0
        while True:
            reader = LogReader(log, start=position)
            records = await asyncio.to_thread(reader.next_chunk)
            if not records:
                break
            position = records[-1].end
            finished = self._match(records, log)
            self.event_count += len(finished)
            if not await self._send(f"{self._life.inc}.{number}", finished):
                self.damaged.add(log)
        if reader.end_state != "clean":
            self.bad_records += 1
        if reader.end_state == "damaged":
            self.damaged.add(log)

    def _match(self, records: list[Record], log: Path) -> list[Finished]:
        """Return the events among these, and keep account of which requests are still open."""
        finished: list[Finished] = []
        for offset, record_type, body in records:
            if record_type not in {RECORD_ADMITTED, RECORD_FINISHED}:
                continue
            try:
                owner = decode_owner(body)
            except msgspec.MsgspecError:
                self._note_bad(log)
                continue
            if record_type == RECORD_ADMITTED:
                self._open[owner.request_id] = (body, log)
            else:
                self._open.pop(owner.request_id, None)
                finished.append((owner.tenant, body, offset))
        return finished

    async def _publish_interrupted(self) -> None:
        finished: list[Finished] = []
        digest = hashlib.sha256()
        for number, (body, log) in enumerate(self._open.values()):
            try:
                admitted = _decode_admitted(body)
            except msgspec.MsgspecError:
                self._note_bad(log)
                continue
            event = encode_event(interrupted(admitted))
            digest.update(event)
            finished.append((admitted.tenant, event, number))
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)  # ten thousand streams may have been open: let others run
        self.interrupted_count = len(finished)
        # They have no place in a file: the digest makes equal ids mean equal bytes.
        await self._send(f"{self._life.inc}.interrupted.{digest.hexdigest()[:16]}", finished)

    async def _send(self, source: str, finished: list[Finished]) -> bool:
        """Return when all are acknowledged; False if some never can be. Raises `PublishError`."""
        outcomes = await asyncio.gather(
            *(self._outbox.send(batch) for batch in cut(source, finished)), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if outcome is not None]
        for error in errors:
            if not isinstance(error, MessageTooLargeError):
                raise error
        return not errors

    def _note_bad(self, log: Path) -> None:
        self.bad_records += 1
        self.damaged.add(log)
