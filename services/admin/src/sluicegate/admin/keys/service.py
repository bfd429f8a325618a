"""What may be done with keys."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, Verb, check_version
from sluicegate.admin.errors import KeyRevokedError, UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.keys import repository
from sluicegate.admin.keys.repository import KeyRow
from sluicegate.admin.keys.schemas import Key, KeyPatch, KeyQuery, NewKey
from sluicegate.admin.teams import repository as teams
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.ids import new_id
from sluicegate.contracts.keys import VISIBLE_PREFIX_LENGTH, key_digest, new_key


@dataclass(frozen=True, slots=True)
class NewKeyRow:
    """A new key with its text, which is known here and to the caller only."""

    row: KeyRow
    text: str


class KeyService:
    """Keys."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewKey, caller: Caller) -> Changed[NewKeyRow]:
        text = new_key()

        async def work(unit: Unit) -> NewKeyRow:
            tenant = await teams.hold(unit.connection, body.team)
            if tenant is None:
                raise UnknownReferenceError("team", "team", body.team)
            defaults = await tenants.default_key_limits(unit.connection, tenant)
            row = await repository.insert(
                unit.connection,
                key_id=new_id("key"),
                team=body.team,
                name=body.name,
                digest=key_digest(text.encode()),
                prefix=text[:VISIBLE_PREFIX_LENGTH],
                enabled=body.enabled,
                allowed_models=body.allowed_models,
                expires_at=body.expires_at,
                limits=limits.over(defaults, body.limits),
            )
            unit.note("created", Ref("key", row.id), before=None, after=snapshot(Key, row))
            return NewKeyRow(row, text)

        return await self._changes.change(caller, work)

    async def get(self, key_id: str) -> KeyRow:
        row = await self._changes.read(lambda connection: repository.get(connection, key_id))
        return found(row, "key", key_id)

    async def page(self, query: KeyQuery) -> list[KeyRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection,
                after=query.cursor,
                count=query.limit + 1,
                tenant=query.tenant,
                department=query.department,
                team=query.team,
                name=query.name,
                prefix=query.prefix,
            )
        )

    async def update(self, key_id: str, patch: KeyPatch, caller: Caller, version: int | None) -> Changed[KeyRow]:
        async def work(unit: Unit) -> KeyRow:
            before = found(await repository.lock(unit.connection, key_id), "key", key_id)
            check_version(before.version, version)
            wanted = replace(before, **limits.laid_over(before, changes_of(patch)))
            if wanted != before and before.revoked_at is not None:
                raise KeyRevokedError("The key is revoked; it stays as it is.", "Make a new key.")
            return await _write(unit, "updated", before, wanted)

        return await self._changes.change(caller, work)

    async def revoke(self, key_id: str, caller: Caller, version: int | None) -> Changed[KeyRow]:
        """Refuse the key for good. Revoking it again changes nothing."""

        async def work(unit: Unit) -> KeyRow:
            before = found(await repository.lock(unit.connection, key_id), "key", key_id)
            check_version(before.version, version)
            wanted = before if before.revoked_at is not None else replace(before, revoked_at=datetime.now(UTC))
            return await _write(unit, "revoked", before, wanted)

        return await self._changes.change(caller, work)

    async def delete(self, key_id: str, caller: Caller, version: int | None) -> Changed[int]:
        """Revoke the key and take it out of the lists."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, key_id), "key", key_id)
            check_version(row.version, version)
            return await removal.remove_keys(unit, [row])

        return await self._changes.change(caller, work)


async def _write(unit: Unit, verb: Verb, before: KeyRow, wanted: KeyRow) -> KeyRow:
    ref = Ref("key", before.id)
    if wanted == before:
        unit.touch(ref)
        return before
    version, updated_at = await repository.update(unit.connection, wanted)
    after = replace(wanted, version=version, updated_at=updated_at)
    unit.note(verb, ref, before=snapshot(Key, before), after=snapshot(Key, after))
    return after
