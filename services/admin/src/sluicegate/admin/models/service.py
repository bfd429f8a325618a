"""What may be done with models."""

from dataclasses import replace

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.errors import UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.models import repository
from sluicegate.admin.models.prices import PricePlan, plan_prices
from sluicegate.admin.models.repository import ModelRow
from sluicegate.admin.models.schemas import Model, ModelPatch, ModelQuery, NewModel, NewPrice
from sluicegate.admin.providers import repository as providers
from sluicegate.contracts.ids import new_id

_NO_PRICES = PricePlan(retired=(), added=())


class ModelService:
    """Models."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewModel, caller: Caller) -> Changed[ModelRow]:
        async def work(unit: Unit) -> ModelRow:
            if not await providers.hold(unit.connection, [body.provider]):
                raise UnknownReferenceError("provider", "provider", body.provider)
            model_id = new_id("mod")
            await repository.insert(
                unit.connection,
                model_id=model_id,
                provider=body.provider,
                name=body.name,
                model_type=body.model_type,
                capabilities=body.capabilities,
                context_tokens=body.context_tokens,
                max_output_tokens=body.max_output_tokens,
                owned_by=body.owned_by,
                enabled=body.enabled,
                limits=limits.new(body.limits),
            )
            plan = plan_prices((), [price.row() for price in body.prices], last_version=0)
            await repository.change_prices(unit.connection, model_id, plan)
            row = found(await repository.get(unit.connection, model_id), "model", model_id)
            unit.note("created", Ref("model", row.id), before=None, after=snapshot(Model, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, model_id: str) -> ModelRow:
        row = await self._changes.read(lambda connection: repository.get(connection, model_id))
        return found(row, "model", model_id)

    async def page(self, query: ModelQuery) -> list[ModelRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection, after=query.cursor, count=query.limit + 1, provider=query.provider, name=query.name
            )
        )

    async def update(self, model_id: str, patch: ModelPatch, caller: Caller, version: int | None) -> Changed[ModelRow]:
        async def work(unit: Unit) -> ModelRow:
            before = found(await repository.lock(unit.connection, model_id), "model", model_id)
            check_version(before.version, version)
            named = changes_of(patch)
            plan = await _plan(unit, before, named.pop("prices", None))
            wanted = replace(before, **limits.laid_over(before, named))
            ref = Ref("model", model_id)
            if wanted == before and plan.is_empty:
                unit.touch(ref)
                return before
            await repository.change_prices(unit.connection, model_id, plan)
            await repository.update(unit.connection, wanted)
            after = found(await repository.get(unit.connection, model_id), "model", model_id)
            unit.note("updated", ref, before=snapshot(Model, before), after=snapshot(Model, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, model_id: str, caller: Caller, version: int | None) -> Changed[int]:
        """Delete it; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, model_id), "model", model_id)
            check_version(row.version, version)
            return await removal.remove_models(unit, [row])

        return await self._changes.change(caller, work)


async def _plan(unit: Unit, before: ModelRow, prices: list[NewPrice] | None) -> PricePlan:
    if prices is None:
        return _NO_PRICES
    last_version = await repository.last_price_version(unit.connection, before.id)
    return plan_prices(before.prices, [price.row() for price in prices], last_version=last_version)
