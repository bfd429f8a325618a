"""What may be done with budgets."""

from dataclasses import replace
from typing import Final

from sluicegate.admin import removal
from sluicegate.admin.access import Caller
from sluicegate.admin.budgets import repository
from sluicegate.admin.budgets.repository import BudgetRow
from sluicegate.admin.budgets.schemas import Budget, BudgetPatch, BudgetQuery, NewBudget, columns
from sluicegate.admin.budgets.scopes import hold_scope
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.fields import snapshot
from sluicegate.contracts.ids import new_id

# What gives the present period another meaning: what was spent in it is then asked for anew.
_MEANING: Final = ("scope", "scope_id", "period", "first_weekday", "time_zone")


class BudgetService:
    """Budgets."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewBudget, caller: Caller) -> Changed[BudgetRow]:
        async def work(unit: Unit) -> BudgetRow:
            owner = await hold_scope(unit.connection, body.scope, body.scope_id)
            row = await repository.insert(
                unit.connection, budget_id=new_id("bud"), tenant=owner.tenant, **columns(body)
            )
            unit.note("created", Ref("budget", row.id), before=None, after=snapshot(Budget, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, budget_id: str) -> BudgetRow:
        row = await self._changes.read(lambda connection: repository.get(connection, budget_id))
        return found(row, "budget", budget_id)

    async def page(self, query: BudgetQuery) -> list[BudgetRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection,
                after=query.cursor,
                count=query.limit + 1,
                tenant=query.tenant,
                scope=query.scope,
                scope_id=query.scope_id,
                name=query.name,
            )
        )

    async def update(
        self, budget_id: str, patch: BudgetPatch, caller: Caller, version: int | None
    ) -> Changed[BudgetRow]:
        async def work(unit: Unit) -> BudgetRow:
            before = found(await repository.lock(unit.connection, budget_id), "budget", budget_id)
            check_version(before.version, version)
            wanted = replace(before, **columns(patch))
            ref = Ref("budget", budget_id)
            if wanted == before:
                unit.touch(ref)
                return before
            if (wanted.scope, wanted.scope_id) != (before.scope, before.scope_id):
                owner = await hold_scope(unit.connection, wanted.scope, wanted.scope_id)
                wanted = replace(wanted, tenant=owner.tenant)
            after = await repository.update(unit.connection, wanted, counts_anew=_counts_anew(before, wanted))
            unit.note("updated", ref, before=snapshot(Budget, before), after=snapshot(Budget, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, budget_id: str, caller: Caller, version: int | None) -> Changed[int]:
        """Delete it; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, budget_id), "budget", budget_id)
            check_version(row.version, version)
            return await removal.remove_budgets(unit, [row])

        return await self._changes.change(caller, work)


def _counts_anew(before: BudgetRow, after: BudgetRow) -> bool:
    """Tell whether the meter of the present period may not know all that was spent in it.

    Enabled again counts too: while it was not, no edge noted what was spent.
    """
    return (after.enabled and not before.enabled) or any(
        getattr(before, name) != getattr(after, name) for name in _MEANING
    )
