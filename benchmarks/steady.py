"""`python -m benchmarks.steady`: an open loop through the whole stack, with no error and no retry allowed."""

import argparse
import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.compare import contenders, machine
from benchmarks.compare.contenders import Contender
from benchmarks.compare.harness import Harness, harness
from sluicegate.devstack.load.job import Job, Result, chat_body
from sluicegate.devstack.stack_client import Stack

_RESULT = Path(__file__).parent / "results" / "steady.json"
_DIRECT_SECONDS = 20.0


def main() -> int:
    """0 if every request was answered rightly by exactly one call to the provider, 1 otherwise."""
    options = _options()
    with contenders.scratch_folder() as folder, _stack(options, folder) as stack:
        provider = contenders.direct(stack.provider_url)
        with harness(folder, []) as load:
            bare = _run(load, provider, options.rate, min(_DIRECT_SECONDS, options.seconds))
            calls = _provider_calls(provider)
            through = _run(load, contenders.edge_of_stack(stack), options.rate, options.seconds)
            calls = _provider_calls(provider) - calls
    result = _result(bare, through, calls, options)
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if not options.no_write:
        _RESULT.parent.mkdir(exist_ok=True)
        _RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if result["holds"] else 1


@contextmanager
def _stack(options: argparse.Namespace, folder: Path) -> Iterator[Stack]:
    with ExitStack() as stack:
        if options.stack:
            yield Stack.read(options.stack)
        else:
            url = stack.enter_context(contenders.provider(folder))
            yield stack.enter_context(contenders.started_stack(url, folder))


def _run(load: Harness, contender: Contender, rate_per_s: float, seconds: float) -> Result:
    job = Job(
        url=contender.chat_url,
        body=chat_body(contender.model, is_streamed=False),
        headers=contender.headers,
        seconds=seconds,
        rate_per_s=rate_per_s,
    )
    load.run(msgspec.structs.replace(job, seconds=0.5))
    return load.run(job)


def _provider_calls(provider: Contender) -> int:
    with urllib.request.urlopen(f"{provider.url}/_fake/stats", timeout=10) as answer:
        return int(json.load(answer)["calls"])


def _result(bare: Result, through: Result, provider_calls: int, options: argparse.Namespace) -> dict[str, Any]:
    assert bare.latency is not None
    assert through.latency is not None
    warm_up_calls = int(options.rate * 0.5)
    retries = provider_calls - warm_up_calls - through.answered
    expected = int(options.rate * options.seconds)
    return {
        "machine": machine.description(),
        "rate_per_s": options.rate,
        "seconds": options.seconds,
        "answered": through.answered,
        "expected": expected,
        "errors": through.errors,
        "retries": retries,
        "holds": through.answered == expected and not through.errors and retries == 0,
        "direct_us": msgspec.to_builtins(bare.latency),
        "edge_us": msgspec.to_builtins(through.latency),
        "added_p50_us": round(through.latency.p50_us - bare.latency.p50_us, 1),
        "added_p99_us": round(through.latency.p99_us - bare.latency.p99_us, 1),
        "lateness_us": msgspec.to_builtins(through.lateness),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steady", description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--stack", type=Path, metavar="STACK_JSON", help="a stack that runs already")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/steady.json alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
