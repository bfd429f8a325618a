"""The relay: what was committed is told to the edges and to whoever reads the audit.

An outbox row names a record, never its state. The relay looks up the last word at the record's place in
the bucket, *then* the record's present state, and writes that only if the word is still the last one.
So the order of outbox rows, a late or a second relay, and a row told twice do no harm: each of them ends
in the present state. A transaction-level advisory lock makes it one relay per cluster at a time; it is
taken for each round, so whichever process has just committed relays at once, without asking another.

A round: lock, read outbox rows, settle their places, answer the requests that wait for them, publish the
audit events (message id = event id), remove the rows, commit. A crash anywhere repeats the round.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from nats.errors import Error

from sluicegate.admin.changes.unit import AnyNoun, Ref
from sluicegate.admin.projection import repository
from sluicegate.admin.projection.audit import AuditPublisher
from sluicegate.admin.projection.buckets import Buckets, Last, StaleWriteError
from sluicegate.admin.projection.edges import Sequences
from sluicegate.admin.projection.entries import Entry
from sluicegate.admin.projection.repository import OutboxRow
from sluicegate.runtime.logs import get_logger
from sluicegate.store.pool import Pool, PoolConnection
from sluicegate.store.transactions import is_unavailable

# Other processes commit too; theirs are found by looking, their own relay is usually quicker.
POLL_S: Final = 2.0
BATCH: Final = 500
_RETRY_S: Final = 0.5
_ROUNDS_FOR_STALE: Final = 5
_MANY: Final = 20

_log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits until its records are told."""

    missing: set[Ref]
    told: asyncio.Future[Sequences]
    sequences: Sequences = field(default_factory=Sequences)

    def learn(self, places: dict[Ref, tuple[Entry, int]]) -> None:
        """Take note of what was told, and answer when nothing is missing."""
        for ref in self.missing & places.keys():
            entry, sequence = places[ref]
            self.sequences = _further(self.sequences, entry, sequence)
            self.missing.discard(ref)
        if not self.missing and not self.told.done():
            self.told.set_result(self.sequences)


class Relay:
    """One per process; `run` does the work."""

    def __init__(self, pool: Pool, buckets: Buckets, audit: AuditPublisher) -> None:
        self._pool = pool
        self._buckets = buckets
        self._audit = audit
        self._wake = asyncio.Event()
        self._waiting: list[_Waiter] = []
        self.told_count = 0

    async def tell(self, refs: Iterable[Ref], timeout_s: float) -> Sequences | None:
        """Have these committed records told now; return where they stand, None if it cannot be done in time."""
        waiter = _Waiter(set(refs), asyncio.get_running_loop().create_future())
        if not waiter.missing:
            return Sequences()
        if not self._buckets.is_connected:
            return None
        self._waiting.append(waiter)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.told
        except TimeoutError:
            return None
        finally:
            self._waiting.remove(waiter)

    def wake(self) -> None:
        """Look at the outbox now."""
        self._wake.set()

    async def run(self) -> None:
        """Relay until cancelled, whatever is away."""
        while True:
            self._wake.clear()
            pause_s = POLL_S
            try:
                if self._buckets.is_connected and (self._waiting or await self._has_work()):
                    await self._drain()
            except Exception as error:  # noqa: BLE001 - the relay outlives its own faults; logged here
                if isinstance(error, Error) or is_unavailable(error):
                    _log.warning("relay has to wait", error=str(error) or type(error).__name__)
                else:
                    _log.exception("relay failed")
                pause_s = _RETRY_S
            await self._sleep(pause_s)

    async def settle(self, entries: Sequence[Entry]) -> None:
        """Make these places hold what they should. Raises nats-py's errors, or StaleWriteError if it cannot win."""
        left = list(entries)
        for _ in range(_ROUNDS_FOR_STALE):
            async with self._pool.acquire() as connection, connection.transaction():
                await repository.take_relay_lock(connection)
                left = (await self._settle(connection, left)).stale
            if not left:
                return
        raise StaleWriteError(left[0].name)

    async def _sleep(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _has_work(self) -> bool:
        async with self._pool.acquire() as connection:
            return bool(await repository.outbox_depth(connection))

    async def _drain(self) -> None:
        """Run rounds until the outbox is empty or nothing helps; then answer who was there before the last one."""
        lost_races = 0
        while True:
            waiting = list(self._waiting)
            outcome = await self._round(waiting)
            lost_races = lost_races + 1 if outcome == "raced" else 0
            if outcome == "ended" or lost_races == _ROUNDS_FOR_STALE:
                break
        missing = {ref for waiter in waiting for ref in waiter.missing}
        if missing:
            known = await self._look_up(missing)
            for waiter in waiting:
                waiter.learn(known)

    async def _look_up(self, refs: set[Ref]) -> dict[Ref, tuple[Entry, int]]:
        """Return where records stand that an earlier round or another process has told, at least as new as asked."""
        async with self._pool.acquire() as connection:
            pending = await repository.pending(connection, [ref.id for ref in refs])
            digests = await repository.digests(connection, [ref.id for ref in refs if ref.noun == "key"])
        places = {ref: _place(ref, digests.get(ref.id)) for ref in refs if ref.id not in pending}
        lasts = await asyncio.gather(*(self._buckets.last(entry) for entry in places.values()))
        return {ref: (entry, last.sequence) for (ref, entry), last in zip(places.items(), lasts, strict=True)}

    async def _round(self, waiting: Sequence[_Waiter]) -> Literal["ended", "more", "raced"]:
        """Tell one batch; say whether another round may find more to do, or lost all its writes to another relay."""
        async with self._pool.acquire() as connection, connection.transaction():
            await repository.take_relay_lock(connection)
            rows = await repository.read_outbox(connection, BATCH, first=_urgent(waiting))
            if not rows:
                return "ended"
            places = {_ref(row): _place(_ref(row), row.digest) for row in rows if not row.is_projected}
            settled = await self._settle(connection, list(dict.fromkeys(places.values())))
            known = {
                ref: (entry, settled.sequences[entry]) for ref, entry in places.items() if entry in settled.sequences
            }
            for waiter in waiting:
                waiter.learn(known)
            told = [row for row in rows if row.is_projected or _ref(row) in known]
            # While more states wait, they go first: a revocation is worth more than its report.
            done = await self._publish(connection, told) if len(places) < BATCH else set()
            await repository.remove_from_outbox(connection, [row.sequence for row in done])
            await repository.mark_projected(connection, [row.sequence for row in told if row not in done])
        self.told_count += len(known)
        if settled.failure is not None:
            raise settled.failure
        if len(done) == len(rows) < BATCH:
            return "ended"
        if done or known:
            return "more"
        return "raced" if settled.stale else "ended"

    async def _publish(self, connection: PoolConnection, rows: Sequence[OutboxRow]) -> set[OutboxRow]:
        """Publish the audit events of these rows; return the rows that are done."""
        events = await repository.read_audit(connection, [row.event_id for row in rows if row.event_id is not None])
        published = await self._audit.publish(list(events.values()))
        return {row for row in rows if row.event_id not in events or row.event_id in published}

    async def _settle(self, connection: PoolConnection, entries: Sequence[Entry]) -> "_Settled":
        # The order matters: the last words first, then the state. See the header.
        lasts = await asyncio.gather(*(self._buckets.last(entry) for entry in entries))
        values = await repository.present(connection, entries)
        results = await asyncio.gather(
            *(self._write(entry, values.get(entry), last) for entry, last in zip(entries, lasts, strict=True)),
            return_exceptions=True,
        )
        settled = _Settled()
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, int):
                settled.sequences[entry] = result
            elif isinstance(result, StaleWriteError):
                settled.stale.append(entry)
            elif isinstance(result, Error | TimeoutError):
                settled.failure = result
            else:
                raise result
        return settled

    async def _write(self, entry: Entry, value: bytes | None, last: Last) -> int:
        if last.value == value:
            return last.sequence
        return await self._buckets.write(entry, value, after=last.sequence)


@dataclass(slots=True)
class _Settled:
    """What came of a batch: where each place stands, and those that somebody else wrote meanwhile."""

    sequences: dict[Entry, int] = field(default_factory=dict)
    stale: list[Entry] = field(default_factory=list)
    failure: Exception | None = None


def _urgent(waiting: Sequence[_Waiter]) -> list[str]:
    """Return the ids that requests wait for, but not those of a mass deletion: it must not hold up the others."""
    return [ref.id for waiter in waiting if len(waiter.missing) <= _MANY for ref in waiter.missing]


def _ref(row: OutboxRow) -> Ref:
    return Ref(cast(AnyNoun, row.noun), row.record_id)


def _further(sequences: Sequences, entry: Entry, sequence: int) -> Sequences:
    if entry.bucket == "keys":
        return sequences._replace(keys=max(sequences.keys, sequence))
    return sequences._replace(catalogue=max(sequences.catalogue, sequence))


def _place(ref: Ref, digest: str | None) -> Entry:
    return Entry("catalogue", f"{ref.noun}.{ref.id}") if digest is None else Entry("keys", digest)
