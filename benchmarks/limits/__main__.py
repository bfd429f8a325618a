"""`python -m benchmarks.limits`: what limits cost Valkey and the requests, how exact they are, how a kill is mended."""

import argparse
import asyncio
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.compare import contenders, machine
from benchmarks.limits import rendering
from benchmarks.limits.loads import BusyKeys, Load, MixedPopulation, NearBudget, NearRate
from sluicegate.devstack.limits.faults import killed_edge
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.stack_client import Stack

_ROOT: Final = Path(__file__).parents[2]
_RESULT: Final = _ROOT / "benchmarks" / "results" / "limits.json"
_RECOVERY_BAR_S: Final = 120.0
# The auditor's own scripts would be counted with those of the edges.
_UNAUDITED: Final = {"SLUICEGATE_BUDGET_ALERT_AUDIT_EVERY_S": "300"}

# By the number of edge workers: with one for each core keys are busy; with more of them each has less to do, and so
# more calls for each of its requests.
# By the number of edge workers: spread over more workers than cores, keys are less busy on each of them, and so there
# are more calls for each request.
_LOADS: Final[Mapping[int, Mapping[str, Load]]] = {
    2: {"busy": BusyKeys(rate_per_s=500.0)},
    4: {
        "busy_spread": BusyKeys(rate_per_s=400.0),
        "near_budget": NearBudget(),
        "near_rate": NearRate(),
        "mixed": MixedPopulation(),
    },
}
_KILLED_WORKERS: Final = 4
_EVERYTHING: Final = [*(name for loads in _LOADS.values() for name in loads), "kill"]
# Bars: waits per request, calls per request.
_BARS: Final[Mapping[str, tuple[float | None, float | None]]] = {
    "busy": (0.01, 0.02),
    "busy_spread": (None, None),
    "mixed": (0.15, 0.2),
    "near_budget": (None, 0.5),
    "near_rate": (None, 0.5),
}


def main() -> int:
    """0 if every bar holds, 1 otherwise."""
    options = _options()
    if options.render:
        return _shown(json.loads(_RESULT.read_text(encoding="utf-8")), is_written=True)
    result: dict[str, Any] = {"machine": machine.description(), "loads": {}}
    with contenders.scratch_folder() as folder:
        for workers, loads in _LOADS.items():
            result["loads"] |= _run(folder / f"counted-{workers}", workers, loads, options.only)
        if "kill" in options.only:
            with _stack(folder / "killed", _KILLED_WORKERS, {}) as stack:
                result["kill"] = _kill(stack)
    is_written = not options.no_write and set(options.only) == set(_EVERYTHING)
    if is_written:
        _RESULT.parent.mkdir(exist_ok=True)
        _RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return _shown(result, is_written=is_written)


def _run(home: Path, workers: int, loads: Mapping[str, Load], only: Collection[str]) -> dict[str, Any]:
    wanted = {name: load for name, load in loads.items() if name in only}
    found: dict[str, Any] = {}
    if wanted:
        with _stack(home, workers, _UNAUDITED) as stack:
            for name, load in wanted.items():
                found[name] = _judged(name, {"edge_workers": workers, **asyncio.run(load.run(stack))})
                print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    return found


def _shown(result: dict[str, Any], *, is_written: bool) -> int:
    if is_written:
        print(rendering.render(result))
        if not rendering.write_into(_ROOT / "README.md", result):
            print(f"README.md has no {rendering.OPENING} markers; nothing rendered there", file=sys.stderr)
    else:
        print(json.dumps(result, indent=1))
    judged = [*result["loads"].values(), *([result["kill"]] if "kill" in result else [])]
    return 0 if all(one["holds"] for one in judged) else 1


@contextmanager
def _stack(home: Path, workers: int, env: Mapping[str, str]) -> Iterator[Stack]:
    own = OwnStack(home, ["--edge-workers", str(workers)], env=env)
    try:
        yield own.start()
    finally:
        own.stop()


def _judged(name: str, found: dict[str, Any]) -> dict[str, Any]:
    most_waits, most_calls = _BARS[name]
    calls = max(found["calls_per_request"], found["scripts_per_request"])
    holds = (most_calls is None or calls <= most_calls) and (most_waits is None or found["waits_share"] <= most_waits)
    is_right = found.get("is_exact", found["served"] == found["requests"])
    return {**found, "bar_waits_share": most_waits, "bar_calls_per_request": most_calls, "holds": holds and is_right}


def _kill(stack: Stack) -> dict[str, Any]:
    recovery = asyncio.run(killed_edge(stack))
    return {
        "requests": len(recovery.answers),
        "broken": sum(answer.status == 0 for answer in recovery.answers),
        "meters": [one.scope for one in recovery.compared],
        "equal_after_s": round(recovery.equal_after_s, 1),
        "bar_s": _RECOVERY_BAR_S,
        "holds": recovery.equal_after_s <= _RECOVERY_BAR_S,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_EVERYTHING, default=_EVERYTHING, help="some of the runs")
    parser.add_argument("--render", action="store_true", help="render the README's table from the last result")
    parser.add_argument("--no-write", action="store_true", help="leave the result and the README alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
