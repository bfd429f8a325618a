"""Takes deliveries that are due and makes their attempts, many at once, each endpoint only a few.

The table is the queue: this loop looks into it every second, and at once when something was stored. An attempt that was
made must be recorded, or it is made again: recording is tried for as long as the lease lasts.
"""

import asyncio
import contextlib
import random
import time
from typing import Final

import structlog
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from sluicegate.budget_alert import messages, policy, repository, signing
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.budget_alert.policy import Answer, Outcome
from sluicegate.budget_alert.repository import Claim
from sluicegate.budget_alert.sender import TOTAL_TIMEOUT_S, Sender, now_s
from sluicegate.runtime.key_ring import KeyRing, SealError
from sluicegate.store import transactions
from sluicegate.store.pool import Pool, PoolConnection

_log = structlog.get_logger("sluicegate.budget_alert.delivering")

LOOK_EVERY_S: Final = 1.0
_CLAIMED_AT_ONCE: Final = 50
_RECORD_PATIENCE_S: Final = 15.0
_COUNT_EVERY_S: Final = 5.0


class Deliveries:
    """The deliveries of one process."""

    def __init__(
        self, pool: Pool, sender: Sender, key_ring: KeyRing, metrics: Metrics, *, at_once: int, per_endpoint: int
    ) -> None:
        """Nothing is sent before `run`."""
        self._pool = pool
        self._sender = sender
        self._key_ring = key_ring
        self._metrics = metrics
        self._at_once = at_once
        self._per_endpoint = per_endpoint
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._count_at = 0.0

    def look_now(self) -> None:
        """Say that something may be due."""
        self._changed.set()

    async def run(self) -> None:
        """Deliver until cancelled; then call `drain`."""
        while True:
            self._changed.clear()
            is_more_due = False
            try:
                is_more_due = await self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, deliveries must go on when it is over
                self._complain(error)
            if not is_more_due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._changed.wait()

    async def drain(self) -> None:
        """Wait for the attempts that are under way; each has an end."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _look(self) -> bool:
        """Start on what is due; return whether there may be more to start on."""
        free = min(self._at_once - len(self._tasks), _CLAIMED_AT_ONCE)
        if free <= 0:
            return False
        claimed_at = time.monotonic()
        claims = await transactions.run(self._pool, lambda connection: self._claim(connection, free))
        for claim in claims:
            task = asyncio.create_task(self._deliver(claim, claimed_at))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        self._metrics.under_way.set(len(self._tasks))
        if claimed_at >= self._count_at:
            self._count_at = claimed_at + _COUNT_EVERY_S
            async with self._pool.acquire() as connection:
                self._metrics.pending.set(await repository.count_pending(connection))
        return len(claims) == free

    async def _claim(self, connection: PoolConnection, most: int) -> list[Claim]:
        self._metrics.buried.inc(await repository.bury_hopeless(connection))
        return await repository.claim(connection, most=most, per_endpoint=self._per_endpoint)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._metrics.under_way.set(len(self._tasks))
        self._changed.set()

    def _complain(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if transactions.is_unavailable(error) or transactions.is_transient(error):
            _log.warning("database away, deliveries wait", reason=reason)
        else:
            _log.error("deliveries wait", reason=reason, exc_info=error)

    async def _deliver(self, claim: Claim, claimed_at: float) -> None:
        """Make one attempt and record it."""
        if time.monotonic() > claimed_at + repository.LEASE_S - TOTAL_TIMEOUT_S:
            return  # this process stood still: somebody else may be at it by the time we were done
        started = time.perf_counter()
        answer = await self._attempt(claim)
        self._metrics.attempt_seconds.observe(time.perf_counter() - started)
        outcome = policy.outcome(answer, attempts_left=claim.attempts_left, jitter=random.uniform(-1, 1))
        self._metrics.attempts.labels(outcome.state).inc()
        _log.info(
            "attempt ended",
            delivery=claim.id,
            endpoint=claim.endpoint,
            number=claim.number,
            state=outcome.state,
            status=answer.status,
            reason=outcome.error,
        )
        try:
            await self._record(claim, answer, outcome)
        except Exception as error:  # noqa: BLE001 - the lease ends, and the next attempt is somebody's
            _log.error("attempt not recorded", delivery=claim.id, reason=f"{type(error).__name__}: {error}")

    async def _attempt(self, claim: Claim) -> Answer:
        if claim.obstacle is not None:
            return Answer(error=claim.obstacle, is_final=True)
        try:
            secrets = [self._key_ring.open(secret, claim.endpoint.encode()).decode() for secret in claim.secrets]
        except (SealError, UnicodeError) as error:
            return Answer(error=f"the secret cannot be opened: {error}")
        if not secrets and claim.form == "json":
            return Answer(error="the endpoint has no secret to sign with")
        body = messages.body(claim.form, claim.subject)
        headers = signing.headers(claim.message_id, now_s(), body, secrets)
        try:
            return await self._sender.send(claim.url, headers, body, allows_private=claim.allows_private)
        except Exception as error:  # noqa: BLE001 - one receiver's oddity must not end the others' deliveries
            _log.exception("attempt failed in an unforeseen way", delivery=claim.id)
            return Answer(error=f"failed in an unforeseen way: {type(error).__name__}")

    async def _record(self, claim: Claim, answer: Answer, outcome: Outcome) -> None:
        async def finish(connection: PoolConnection) -> None:
            if not await repository.finish(connection, claim, answer, outcome):
                _log.warning("attempt was no longer ours", delivery=claim.id, number=claim.number)

        async for attempt in AsyncRetrying(
            retry=retry_if_exception(transactions.is_unavailable),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0, jitter=0.1),
            stop=stop_after_delay(_RECORD_PATIENCE_S),
            reraise=True,
        ):
            with attempt:
                await transactions.run(self._pool, finish)
