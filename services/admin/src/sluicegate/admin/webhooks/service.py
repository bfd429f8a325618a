"""What may be done with webhooks."""

from dataclasses import dataclass, replace
from typing import Final

from sluicegate.admin import removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.commands import AlertCommands
from sluicegate.admin.errors import InvalidError, TooManySecretsError, UnknownReferenceError
from sluicegate.admin.fields import changes_of
from sluicegate.admin.tenants import repository as tenants
from sluicegate.admin.webhooks import reach, repository
from sluicegate.admin.webhooks.repository import WebhookRow
from sluicegate.admin.webhooks.schemas import NewWebhook, SecretRotation, WebhookPatch, WebhookQuery
from sluicegate.admin.webhooks.secrets import new_secret
from sluicegate.admin.webhooks.snapshots import webhook_snapshot
from sluicegate.contracts.catalogue import SealedSecret
from sluicegate.contracts.ids import new_id
from sluicegate.runtime.key_ring import KeyRing

# A delivery is signed with each.
_MAX_SECRETS: Final = 5


@dataclass(frozen=True, slots=True)
class WithSecret:
    """A webhook with its new secret, which is known here and to the caller only."""

    row: WebhookRow
    text: str


class WebhookService:
    """Webhooks."""

    def __init__(
        self, changes: Changes, key_ring: KeyRing, commands: AlertCommands, look_up: reach.LookUp = reach.look_up
    ) -> None:
        self._changes = changes
        self._key_ring = key_ring
        self._commands = commands
        self._look_up = look_up

    async def create(self, body: NewWebhook, caller: Caller) -> WithSecret:
        text, webhook_id = new_secret(), new_id("whk")
        if not body.allow_private_addresses:
            _refuse_private(await reach.private_reason(body.url, self._look_up))

        async def work(unit: Unit) -> WebhookRow:
            if body.tenant is not None and not await tenants.hold(unit.connection, body.tenant):
                raise UnknownReferenceError("tenant", "tenant", body.tenant)
            await repository.insert(unit.connection, webhook_id=webhook_id, **dict(body))
            sealed = self._sealed(webhook_id, text)
            await repository.insert_secret(unit.connection, webhook_id, new_id("whs"), sealed)
            row = found(await repository.get(unit.connection, webhook_id), "webhook", webhook_id)
            unit.note("created", Ref("webhook", webhook_id), before=None, after=webhook_snapshot(row))
            return row

        return WithSecret(await self._changes.keep(caller, work), text)

    async def get(self, webhook_id: str) -> WebhookRow:
        row = await self._changes.read(lambda connection: repository.get(connection, webhook_id))
        return found(row, "webhook", webhook_id)

    async def page(self, query: WebhookQuery) -> list[WebhookRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection, after=query.cursor, count=query.limit + 1, tenant=query.tenant, name=query.name
            )
        )

    async def update(self, webhook_id: str, patch: WebhookPatch, caller: Caller, version: int | None) -> WebhookRow:
        named = changes_of(patch)
        reason = None
        if named.keys() & {"url", "allow_private_addresses"}:  # looked up before anything is locked
            url = named.get("url") or (await self.get(webhook_id)).url
            reason = await reach.private_reason(url, self._look_up)

        async def work(unit: Unit) -> WebhookRow:
            before = found(await repository.lock(unit.connection, webhook_id), "webhook", webhook_id)
            check_version(before.version, version)
            wanted = replace(before, **named)
            if wanted == before:
                return before
            if not wanted.allow_private_addresses:
                _refuse_private(reason)
            await repository.update(unit.connection, wanted)
            return await _noted(unit, before)

        return await self._changes.keep(caller, work)

    async def rotate_secret(
        self, webhook_id: str, body: SecretRotation, caller: Caller, version: int | None
    ) -> WithSecret:
        """Make a new secret; the earlier ones stay valid for the overlap."""
        text = new_secret()

        async def work(unit: Unit) -> WebhookRow:
            before = found(await repository.lock(unit.connection, webhook_id), "webhook", webhook_id)
            check_version(before.version, version)
            if body.overlap_hours and len(before.secrets) >= _MAX_SECRETS:
                raise TooManySecretsError(
                    f"{len(before.secrets)} secrets are valid.",
                    "Wait until the first has expired, or send overlap_hours 0: then only the new one is valid.",
                )
            await repository.replace_secret(
                unit.connection,
                webhook_id,
                new_id("whs"),
                self._sealed(webhook_id, text),
                overlap_hours=body.overlap_hours,
            )
            return await _noted(unit, before)

        return WithSecret(await self._changes.keep(caller, work), text)

    async def test(self, webhook_id: str) -> str:
        """Have a test message sent there; return the command's id."""
        await self.get(webhook_id)
        return await self._commands.test(webhook_id)

    async def delete(self, webhook_id: str, caller: Caller, version: int | None) -> int:
        """Delete it; return how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, webhook_id), "webhook", webhook_id)
            check_version(row.version, version)
            return await removal.remove_webhooks(unit, [row])

        return await self._changes.keep(caller, work)

    def _sealed(self, webhook_id: str, text: str) -> SealedSecret:
        return self._key_ring.seal(text.encode(), webhook_id.encode())


async def _noted(unit: Unit, before: WebhookRow) -> WebhookRow:
    after = found(await repository.get(unit.connection, before.id), "webhook", before.id)
    ref = Ref("webhook", before.id)
    unit.note("updated", ref, before=webhook_snapshot(before), after=webhook_snapshot(after))
    return after


def _refuse_private(reason: str | None) -> None:
    if reason is not None:
        raise InvalidError("url", f"{reason}; set allow_private_addresses if alerts shall go there")
