"""The demo tenant, team, key, model and budget, made through the admin API as a person would make them.

Idempotent: what exists is found by name and brought up to date. Only the key's text exists nowhere else than in our own
secrets file; without it a new key is made.
"""

from dataclasses import dataclass
from typing import Any, Final

import httpx

from sluicegate.devstack.stack.layout import Secrets

MODEL: Final = "demo"
FAKE_MODEL: Final = "fake-gpt"
_NAME: Final = "demo"
_BUDGET: Final = {"limit_usd": "100", "period": "month"}
_FAKE_PRICE: Final = {"input_usd_per_million": "0.15", "output_usd_per_million": "0.60"}


class DemoError(RuntimeError):
    """The admin API refused something; the message says what it answered."""


@dataclass(frozen=True)
class DemoObjects:
    """What a first request needs."""

    key: str
    model: str = MODEL


class AdminClient:
    """The few calls needed here."""

    def __init__(self, client: httpx.AsyncClient, url: str, token: str) -> None:
        self._client = client
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = await self._client.request(method, f"{self._url}/api/{path}", json=body, headers=self._headers)
        if not answer.is_success:
            raise DemoError(f"admin API: {method} /api/{path} answered {answer.status_code}: {answer.text[:500]}")
        return dict(answer.json()) if answer.content else {}

    async def find(self, nouns: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """The first record whose fields have these values."""
        cursor: str | None = None
        while True:
            page = await self.call("GET", f"{nouns}?limit=500{f'&cursor={cursor}' if cursor else ''}")
            for record in page["data"]:
                if all(record.get(name) == value for name, value in wanted.items()):
                    return dict(record)
            cursor = page.get("next")
            if not cursor:
                return None

    async def ensure(self, nouns: str, identity: dict[str, Any], rest: dict[str, Any] | None = None) -> str:
        """Find a record by `identity` or create it, and set `rest`; its id."""
        rest = rest or {}
        found = await self.find(nouns, identity)
        if found is None:
            return str((await self.call("POST", nouns, {**identity, **rest}))["id"])
        if changed := {name: value for name, value in rest.items() if found.get(name) != value}:
            await self.call("PATCH", f"{nouns}/{found['id']}", changed)
        return str(found["id"])


async def ensure_demo(
    admin: AdminClient, secrets: Secrets, *, provider_url: str, provider_model: str, provider_key: str | None
) -> DemoObjects:
    """Make or find everything; the key of an earlier start is used again."""
    tenant = await admin.ensure("tenants", {"name": _NAME})
    team = await admin.ensure("teams", {"name": _NAME, "tenant": tenant})
    credential = {"api_key": provider_key} if provider_key else {}
    provider = await admin.ensure("providers", {"name": _NAME}, {"base_url": provider_url, **credential})
    model = await _model(admin, provider, provider_model)
    await admin.ensure("routes", {"alias": MODEL}, {"targets": [{"model": model}]})
    await _budget(admin, team, model)
    return DemoObjects(key=await _key(admin, secrets, team))


async def _model(admin: AdminClient, provider: str, name: str) -> str:
    """Only the fake model has a price: what another server costs is for its owner to say, and unknown is not 0."""
    identity = {"provider": provider, "name": name}
    found = await admin.find("models", identity)
    if name != FAKE_MODEL or (found and found.get("prices")):
        return await admin.ensure("models", identity)
    return await admin.ensure("models", identity, {"prices": [_FAKE_PRICE]})


async def _budget(admin: AdminClient, team: str, model: str) -> None:
    """Make a budget; it keeps what its owner changes. A hard one would refuse a model whose cost nobody knows."""
    is_priced = bool((await admin.call("GET", f"models/{model}"))["prices"])
    identity = {"name": _NAME, "scope": "team", "scope_id": team}
    found = await admin.find("budgets", identity)
    if found is None:
        await admin.call("POST", "budgets", {**identity, **_BUDGET, "soft": not is_priced})
    elif not is_priced and not found["soft"]:
        await admin.call("PATCH", f"budgets/{found['id']}", {"soft": True})


async def _key(admin: AdminClient, secrets: Secrets, team: str) -> str:
    known, known_id = secrets.get("demo_key"), secrets.get("demo_key_id")
    if known and known_id and await _is_usable(admin, known_id, team):
        return known
    made = await admin.call("POST", "keys", {"team": team, "name": _NAME})
    secrets.put("demo_key_id", str(made["id"]))
    secrets.put("demo_key", str(made["key"]))
    return str(made["key"])


async def _is_usable(admin: AdminClient, key_id: str, team: str) -> bool:
    try:
        record = await admin.call("GET", f"keys/{key_id}")
    except DemoError:
        return False
    return record.get("team") == team and bool(record.get("enabled")) and not record.get("revoked_at")
