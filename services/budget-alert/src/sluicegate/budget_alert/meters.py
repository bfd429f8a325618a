"""Which meters the auditor looks at: those of each budget's present period, and of one that ended within the hour."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from sluicegate.budget_alert.repository import EnabledBudget
from sluicegate.contracts.catalogue import Budget
from sluicegate.contracts.facts import SpentQuestion
from sluicegate.ledger.meters import ONE_TAG, sum_name
from sluicegate.ledger.periods import period_of
from sluicegate.ledger.store import StoreError

_HOUR_US: Final = 3_600_000_000
_CALL_TIMEOUT_S: Final = 1.0
_NAMES_AT_ONCE: Final = 500


class BudgetMeter(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in one period. Without a tenant it is the platform's."""

    budget: Budget
    tenant: str | None
    name: str
    start_us: int
    end_us: int

    @property
    def question(self) -> SpentQuestion:
        """What to ask usage-writer."""
        return SpentQuestion(
            scope=self.budget.scope, id=self.budget.scope_id, start_us=self.start_us, end_us=self.end_us
        )


def audited_meters(budgets: Iterable[EnabledBudget], now_us: int) -> list[BudgetMeter]:
    """Return the meters to look at now. A period may end, or have ended, in between: both are looked at."""
    found = []
    for entry in budgets:
        budget = entry.budget
        periods = {
            period_of(budget.period, budget.time_zone, budget.first_weekday, at_us)
            for at_us in (now_us - _HOUR_US, now_us)
        }
        found += [
            BudgetMeter(
                budget=budget,
                tenant=entry.tenant,
                name=sum_name(ONE_TAG, budget.id, budget.scope_id, start_us),
                start_us=start_us,
                end_us=end_us,
            )
            for start_us, end_us in sorted(periods)
        ]
    return found


class PresentMeters:
    """Tells which meters the store has: nobody has used the others, and asking about them would be waste."""

    def __init__(self, url: str) -> None:
        """Nothing is connected before the first question."""
        self._client = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_CALL_TIMEOUT_S,
            socket_connect_timeout=_CALL_TIMEOUT_S,
        )

    async def of(self, meters: Sequence[BudgetMeter]) -> list[BudgetMeter]:
        """Return those that are there. Raises StoreError."""
        found: list[BudgetMeter] = []
        try:
            for at in range(0, len(meters), _NAMES_AT_ONCE):
                part = meters[at : at + _NAMES_AT_ONCE]
                async with self._client.pipeline(transaction=False) as pipeline:
                    for meter in part:
                        pipeline.exists(meter.name)
                    answers = await pipeline.execute()
                found += [meter for meter, is_there in zip(part, answers, strict=True) if is_there]
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
