"""The demo of `sluicegate up`, made over this API: its budget refuses nobody by surprise and is its owner's to change."""

from pathlib import Path
from typing import Any

import httpx

from sluicegate.devstack.stack.demo import FAKE_MODEL, AdminClient, ensure_demo
from sluicegate.devstack.stack.layout import Secrets

from .conftest import TOKEN, Running


async def demo_budget(admin: Running, secrets: Secrets, model: str) -> dict[str, Any]:
    """Start the demo over a model, and return its budget."""
    transport = httpx.ASGITransport(app=admin.admin.app)
    async with httpx.AsyncClient(transport=transport, timeout=30) as client:
        api = AdminClient(client, "http://admin", TOKEN)
        await ensure_demo(api, secrets, provider_url="http://127.0.0.1:9/v1", provider_model=model, provider_key=None)
        budgets = (await api.call("GET", "budgets?name=demo"))["data"]
    assert len(budgets) == 1
    found: dict[str, Any] = budgets[0]
    return found


async def test_demo_budget_stays_as_its_owner_changed_it(admin: Running, tmp_path: Path) -> None:
    secrets = Secrets(tmp_path / "secrets.json")
    made = await demo_budget(admin, secrets, FAKE_MODEL)
    assert (made["scope"], made["limit_usd"], made["period"], made["soft"]) == ("team", "100", "month", False)
    await admin.client.patch(f"/api/budgets/{made['id']}", json={"limit_usd": "0.01"})
    again = await demo_budget(admin, secrets, FAKE_MODEL)
    assert (again["id"], again["limit_usd"], again["soft"]) == (made["id"], "0.01", False)
    # A hard one would refuse whatever has no price.
    assert (await demo_budget(admin, secrets, "llama"))["soft"] is True
