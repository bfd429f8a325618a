"""`python -m benchmarks.propagation`: how long a key change takes to be true on every edge worker.

The time is that of the whole admin call, which answers once every live edge has applied the change; right
after it, the key is tried on connections of their own, so that a wrong answer would be seen.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from benchmarks.compare import contenders, machine
from sluicegate.devstack.load.job import spread
from sluicegate.devstack.stack_client import Stack

_RESULT = Path(__file__).parent / "results" / "propagation.json"
_TRIES = 8


def main() -> int:
    """0 if every change was propagated and true at once, 1 otherwise."""
    options = _options()
    with contenders.scratch_folder() as folder, _stack(options, folder) as stack:
        result = _measure(stack, options.keys)
    print(json.dumps(result, indent=1))
    if not options.no_write:
        _RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["holds"] else 1


@contextmanager
def _stack(options: argparse.Namespace, folder: Path) -> Iterator[Stack]:
    with ExitStack() as stack:
        if options.stack:
            yield Stack.read(options.stack)
        else:
            url = stack.enter_context(contenders.provider(folder))
            yield stack.enter_context(contenders.started_stack(url, folder, edge_workers=2))


def _measure(stack: Stack, keys: int) -> dict[str, Any]:
    took_ns: list[int] = []
    unpropagated = wrong = 0
    with httpx.Client(base_url=stack.admin_url, headers=stack.admin_headers, timeout=30) as admin:
        team = admin.get("/api/teams").json()["data"][0]["id"]
        _change(admin, "/api/keys", {"team": team, "name": "warm-up"}, [])
        for number in range(keys):
            made = _change(admin, "/api/keys", {"team": team, "name": f"benchmark {number}"}, took_ns)
            wrong += _wrong_answers(stack, made["key"], 200)
            revoked = _change(admin, f"/api/keys/{made['id']}/revoke", None, took_ns)
            wrong += _wrong_answers(stack, made["key"], 401)
            unpropagated += (not made["propagated"]) + (not revoked["propagated"])
    found = spread(took_ns)
    assert found is not None
    return {
        "machine": machine.description(),
        "edge_workers": len(stack.processes["edge"]),
        "changes": len(took_ns),
        "unpropagated": unpropagated,
        "wrong_answers_afterwards": wrong,
        "admin_call_us": msgspec.to_builtins(found),
        "bar_p99_us": 50_000,
        "holds": not unpropagated and not wrong and found.p99_us <= 50_000,
    }


def _change(admin: httpx.Client, path: str, body: dict[str, str] | None, took_ns: list[int]) -> dict[str, Any]:
    started = time.perf_counter_ns()
    answer = admin.post(path, json=body) if body is not None else admin.post(path)
    took_ns.append(time.perf_counter_ns() - started)
    answer.raise_for_status()
    return dict(answer.json())


def _wrong_answers(stack: Stack, key: str, expected: int) -> int:
    wrong = 0
    for _ in range(_TRIES):
        with httpx.Client() as client:
            answer = client.post(
                f"{stack.openai_base_url}/chat/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={"model": stack.model, "messages": []},
            )
        wrong += answer.status_code != expected
    return wrong


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.propagation", description=__doc__)
    parser.add_argument("--keys", type=int, default=100, help="keys to make and revoke")
    parser.add_argument("--stack", type=Path, metavar="STACK_JSON", help="a stack that runs already")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/propagation.json alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
