"""When a budget's spend is worth telling: the same for whoever finds it, edge or auditor. Pure."""

from sluicegate.contracts.catalogue import Budget
from sluicegate.contracts.facts import BudgetThresholdReached

EXHAUSTED_PERCENT = 100
# Where a subject names a tenant: budgets of providers and models that belong to nobody.
NO_TENANT = "_"


def thresholds_of(budget: Budget) -> list[int]:
    """Return a budget's thresholds in rising order. A soft one has 100 among them: it refuses nobody, so it is told."""
    wanted = {*budget.thresholds_percent, EXHAUSTED_PERCENT} if budget.is_soft else set(budget.thresholds_percent)
    return sorted(wanted)


def thresholds_reached(budget: Budget, spent_nano_usd: int) -> list[int]:
    """Return the thresholds that this spend has reached, in rising order. Nothing spent reaches none."""
    if spent_nano_usd <= 0:
        return []
    return [percent for percent in thresholds_of(budget) if spent_nano_usd * 100 >= budget.limit_nano_usd * percent]


def threshold_event(
    budget: Budget, tenant: str | None, period_us: tuple[int, int], percent: int, *, spent_nano_usd: int, at_us: int
) -> BudgetThresholdReached:
    """Return the event, under the id that every finder gives it. `period_us`: [start, end)."""
    start_us, end_us = period_us
    return BudgetThresholdReached(
        event_id=f"{budget.id}:{budget.scope_id}:{start_us // 1_000_000}:{percent}",
        at_us=at_us,
        tenant=tenant,
        budget=budget.id,
        budget_name=budget.name,
        scope=budget.scope,
        scope_id=budget.scope_id,
        period_start_us=start_us,
        period_end_us=end_us,
        threshold_percent=percent,
        limit_nano_usd=budget.limit_nano_usd,
        spent_nano_usd=spent_nano_usd,
        is_soft=budget.is_soft,
    )
