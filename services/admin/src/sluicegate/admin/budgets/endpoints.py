"""`/api/budgets`."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import CONFLICT, NOT_FOUND, Deleted, ExpectedVersion, shown, with_propagation
from sluicegate.admin.budgets.schemas import Budget, BudgetChanged, BudgetPage, BudgetPatch, BudgetQuery, NewBudget
from sluicegate.admin.budgets.service import BudgetService
from sluicegate.admin.listing import cut


def router(service: BudgetService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/budgets", tags=["budgets"])

    @routes.post("", operation_id="createBudget", status_code=201)
    async def create(body: NewBudget, caller: ByCaller, response: Response) -> BudgetChanged:
        """Make a budget. It counts its present period from the beginning of that, and nothing before."""
        changed = await service.create(body, caller)
        record = Budget.model_validate(changed.row)
        shown(record, response)
        return with_propagation(BudgetChanged, record, changed.propagation)

    @routes.get("", operation_id="listBudgets")
    async def page(query: Annotated[BudgetQuery, Query()]) -> BudgetPage:
        """List budgets, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return BudgetPage(data=[Budget.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{budget_id}", operation_id="getBudget", responses=NOT_FOUND)
    async def get(budget_id: str, response: Response) -> Budget:
        """Show a budget."""
        record = Budget.model_validate(await service.get(budget_id))
        shown(record, response)
        return record

    @routes.patch("/{budget_id}", operation_id="updateBudget", responses=NOT_FOUND | CONFLICT)
    async def update(
        budget_id: str, body: BudgetPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> BudgetChanged:
        """Change a budget. What was spent in its present period stays spent, whatever the limit becomes."""
        changed = await service.update(budget_id, body, caller, version)
        record = Budget.model_validate(changed.row)
        shown(record, response)
        return with_propagation(BudgetChanged, record, changed.propagation)

    @routes.delete("/{budget_id}", operation_id="deleteBudget", responses=NOT_FOUND | CONFLICT)
    async def delete(budget_id: str, caller: ByCaller, version: ExpectedVersion) -> Deleted:
        """Delete a budget."""
        changed = await service.delete(budget_id, caller, version)
        return Deleted(id=budget_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
