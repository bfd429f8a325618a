"""What may be done with providers."""

from dataclasses import replace
from typing import Any

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.masking import hint
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.errors import UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.providers import repository
from sluicegate.admin.providers.repository import ProviderRow
from sluicegate.admin.providers.schemas import NewProvider, Provider, ProviderPatch, ProviderQuery
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.catalogue import SealedSecret
from sluicegate.contracts.ids import new_id
from sluicegate.runtime.key_ring import KeyRing


class ProviderService:
    """Providers."""

    def __init__(self, changes: Changes, key_ring: KeyRing) -> None:
        self._changes = changes
        self._key_ring = key_ring

    async def create(self, body: NewProvider, caller: Caller) -> Changed[ProviderRow]:
        async def work(unit: Unit) -> ProviderRow:
            if body.tenant is not None and not await tenants.hold(unit.connection, body.tenant):
                raise UnknownReferenceError("tenant", "tenant", body.tenant)
            provider_id = new_id("prv")
            row = await repository.insert(
                unit.connection,
                provider_id=provider_id,
                tenant=body.tenant,
                provider_type=body.type,
                credential=self._sealed(provider_id, body.api_key),
                credential_hint=None if body.api_key is None else hint(body.api_key),
                name=body.name,
                base_url=body.base_url,
                supports_stream_options=body.supports_stream_options,
                connect_timeout_ms=body.connect_timeout_ms,
                first_byte_timeout_ms=body.first_byte_timeout_ms,
                idle_timeout_ms=body.idle_timeout_ms,
                total_timeout_ms=body.total_timeout_ms,
                max_connections=body.max_connections,
                enabled=body.enabled,
                limits=limits.new(body.limits),
            )
            unit.note("created", Ref("provider", row.id), before=None, after=snapshot(Provider, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, provider_id: str) -> ProviderRow:
        row = await self._changes.read(lambda connection: repository.get(connection, provider_id))
        return found(row, "provider", provider_id)

    async def page(self, query: ProviderQuery) -> list[ProviderRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection, after=query.cursor, count=query.limit + 1, tenant=query.tenant, name=query.name
            )
        )

    async def update(
        self, provider_id: str, patch: ProviderPatch, caller: Caller, version: int | None
    ) -> Changed[ProviderRow]:
        async def work(unit: Unit) -> ProviderRow:
            before = found(await repository.lock(unit.connection, provider_id), "provider", provider_id)
            check_version(before.version, version)
            wanted = replace(before, **limits.laid_over(before, self._changes_of(provider_id, patch)))
            ref = Ref("provider", provider_id)
            if wanted == before:
                unit.touch(ref)
                return before
            after = await repository.update(unit.connection, wanted)
            unit.note("updated", ref, before=snapshot(Provider, before), after=snapshot(Provider, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, provider_id: str, caller: Caller, version: int | None, *, cascade: bool) -> Changed[int]:
        """Delete it, with all that belongs to it if `cascade`; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, provider_id), "provider", provider_id)
            check_version(row.version, version)
            return await removal.remove_providers(unit, [row], cascade=cascade)

        return await self._changes.change(caller, work)

    def _changes_of(self, provider_id: str, patch: ProviderPatch) -> dict[str, Any]:
        named = changes_of(patch)
        if "api_key" in named:
            api_key = named.pop("api_key")
            named["credential"] = self._sealed(provider_id, api_key)
            named["credential_hint"] = None if api_key is None else hint(api_key)
        return named

    def _sealed(self, provider_id: str, api_key: str | None) -> SealedSecret | None:
        return None if api_key is None else self._key_ring.seal(api_key.encode(), provider_id.encode())
