"""A key with everything on: rates, open requests and budgets on it, its team and its department, none of them short."""

from typing import Any, Final

import httpx

from sluicegate.devstack.stack_client import Stack

_LIMITS: Final = {
    "requests_per_minute": 100_000_000,
    "tokens_per_minute": 1_000_000_000_000,
    "open_requests": 1_000_000,
}
_BUDGET: Final = {"limit_usd": "1000000", "period": "month"}


def bound_key(stack: Stack) -> str:
    """Make a department, a team and a key with all limits there are; return the key."""
    with httpx.Client(base_url=stack.admin_url, headers=stack.admin_headers, timeout=30) as admin:
        tenant = _get(admin, "tenants")[0]["id"]
        department = _made(admin, "departments", tenant=tenant, name="bench", limits=_LIMITS)
        team = _made(admin, "teams", tenant=tenant, department=department["id"], name="bench", limits=_LIMITS)
        key = _made(admin, "keys", team=team["id"], name="bench", limits=_LIMITS)
        for scope, record in (("department", department), ("team", team), ("key", key)):
            _made(admin, "budgets", name=f"bench {scope}", scope=scope, scope_id=record["id"], **_BUDGET)
    return str(key["key"])


def _get(admin: httpx.Client, nouns: str) -> list[dict[str, Any]]:
    return list(admin.get(f"/api/{nouns}").raise_for_status().json()["data"])


def _made(admin: httpx.Client, nouns: str, **fields: Any) -> dict[str, Any]:
    answer = admin.post(f"/api/{nouns}", json=fields)
    if not answer.is_success:
        raise RuntimeError(f"POST /api/{nouns} answered {answer.status_code}: {answer.text[:500]}")
    return dict(answer.json())
