"""What the admin API says of a key is true on every edge worker as soon as it has said it."""

import os
import signal
from collections.abc import Callable, Iterator

import httpx
import pytest

from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.stack_client import Stack

# The kernel gives connections to workers by a hash of their ports: this many meet every one of two.
TRIES = 24


@pytest.fixture
def admin(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.admin_url, headers=stack.admin_headers, timeout=30) as client:
        yield client


@pytest.fixture
def team(admin: httpx.Client) -> str:
    return str(admin.get("/api/teams").json()["data"][0]["id"])


def _new_key(admin: httpx.Client, team: str, **fields: object) -> dict[str, object]:
    answer = admin.post("/api/keys", json={"team": team, "name": "key of a test", **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def _codes(stack: Stack, key: object, model: str | None = None) -> set[str]:
    """What calls over connections of their own get: "" for an answer, else the error's code."""
    codes = set()
    for _ in range(TRIES):
        with httpx.Client() as client:
            answer = client.post(
                f"{stack.openai_base_url}/chat/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={"model": model or stack.model, "messages": [{"role": "user", "content": "Hello"}]},
            )
        codes.add("" if answer.status_code == 200 else answer.json()["error"]["code"])
    return codes


def test_new_key_works_on_every_worker_once_it_is_propagated(stack: Stack, admin: httpx.Client, team: str) -> None:
    key = _new_key(admin, team)

    assert key["propagated"] is True
    assert _codes(stack, key["key"]) == {""}


def test_revoked_key_is_refused_on_every_worker_once_it_is_propagated(
    stack: Stack, admin: httpx.Client, team: str
) -> None:
    key = _new_key(admin, team)
    assert _codes(stack, key["key"]) == {""}

    answer = admin.post(f"/api/keys/{key['id']}/revoke").json()

    assert answer["propagated"] is True
    assert _codes(stack, key["key"]) == {"key_revoked"}


def test_deleted_key_is_refused_on_every_worker_once_it_is_propagated(
    stack: Stack, admin: httpx.Client, team: str
) -> None:
    key = _new_key(admin, team)

    answer = admin.delete(f"/api/keys/{key['id']}").json()

    assert answer["propagated"] is True
    assert _codes(stack, key["key"]) == {"key_revoked"}


def test_disabled_key_is_refused_and_works_again_when_enabled(stack: Stack, admin: httpx.Client, team: str) -> None:
    key = _new_key(admin, team)

    assert admin.patch(f"/api/keys/{key['id']}", json={"enabled": False}).json()["propagated"] is True
    assert _codes(stack, key["key"]) == {"key_disabled"}
    assert admin.patch(f"/api/keys/{key['id']}", json={"enabled": True}).json()["propagated"] is True
    assert _codes(stack, key["key"]) == {""}


def test_key_calls_only_its_models_and_lists_exactly_those(stack: Stack, admin: httpx.Client, team: str) -> None:
    none = _new_key(admin, team, allowed_models=["another-*"])
    some = _new_key(admin, team, allowed_models=[f"{stack.model[:2]}*"])

    assert _codes(stack, none["key"]) == {"model_not_allowed"}
    assert _codes(stack, some["key"]) == {""}
    for key, models in ((none, []), (some, [stack.model])):
        listed = httpx.get(f"{stack.openai_base_url}/models", headers={"x-api-key": str(key["key"])}).json()
        assert [model["id"] for model in listed["data"]] == models


def test_key_works_again_everywhere_when_a_worker_was_replaced(own_stack: Callable[..., OwnStack]) -> None:
    """A worker listens only when it has read the mirrors: nobody is refused for its start."""
    stack = own_stack("--edge-workers", "2").start()
    worker = stack.processes["edge"][0]
    replaced = False
    os.kill(worker, signal.SIGKILL)
    while not replaced:
        with httpx.Client() as client:
            try:
                answer = client.post(
                    f"{stack.openai_base_url}/chat/completions",
                    headers={"Authorization": f"Bearer {stack.key}"},
                    json={"model": stack.model, "messages": []},
                )
            except httpx.TransportError:
                continue
        assert answer.status_code == 200
        ready = httpx.get(f"{stack.edge_internal_url}/readyz").json()
        replaced = ready["ready"] and worker not in [row["pid"] for row in ready["workers"]]
    assert _codes(stack, stack.key) == {""}
