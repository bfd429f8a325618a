"""`python -m benchmarks.sim_ledger`: the ledger's fault simulation as a table; `--mutations`: what each rule is for.

Virtual time, so the figures do not depend on the machine; only the run times do.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compare import machine
from sluicegate.devstack.ledger_simulation import mutations, scenarios
from sluicegate.devstack.ledger_simulation.run import Outcome, run
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.table import Row, aligned, in_columns
from sluicegate.devstack.servers import ValkeyServer

_RESULT = Path(__file__).parent / "results" / "sim_ledger.json"

_server: Server


def main() -> int:
    """0 if no invariant was violated, and each rule taken out was missed; 1 otherwise."""
    options = _options()
    began_s = time.monotonic()
    with _workers(options.jobs) as workers:
        rows = _table(workers, options)
        missed = _mutations(workers, options) if options.mutations else {}
    print(f"{time.monotonic() - began_s:.0f} s")
    if not options.no_write:
        result = {
            "machine": machine.description(),
            "seeds": options.seeds,
            "took_s": round(time.monotonic() - began_s),
            "scenarios": [row.as_json() for row in rows],
            "rules_taken_out": missed,
        }
        _RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if any(sum(row.violations.values()) for row in rows) or not all(missed.values()) else 0


def _table(workers: ProcessPoolExecutor, options: argparse.Namespace) -> list[Row]:
    chosen = [scenario for scenario in scenarios.ALL if options.only in scenario.name]
    seeds = range(1, options.seeds + 1)
    futures = {scenario: [workers.submit(_run, scenario.name, seed) for seed in seeds] for scenario in chosen}
    rows = []
    for scenario, runs in futures.items():
        outcomes = [future.result() for future in runs]
        for outcome in outcomes:
            for rule, what in outcome.findings.first.items():
                print(f"{scenario.name}, seed {outcome.seed}: {rule}: {what}", file=sys.stderr)
        rows.append(Row.of(outcomes))
    print(in_columns(rows), flush=True)
    return rows


def _mutations(workers: ProcessPoolExecutor, options: argparse.Namespace) -> dict[str, str]:
    """Return by rule what noticed that it was missing; nothing if nothing did."""
    found = workers.map(partial(_notice, seeds=options.seeds), range(len(mutations.ALL)))
    noticed = {
        mutation.rule: by or (mutation.rarely_met and f"not met: {mutation.rarely_met}")
        for mutation, by in zip(mutations.ALL, found, strict=True)
    }
    print(aligned([["rule taken out", "noticed by"], *([rule, by or "NOTHING"] for rule, by in noticed.items())]))
    return noticed


def _run(scenario: str, seed: int) -> Outcome:
    return run(_server, scenarios.named(scenario), seed)


def _notice(index: int, seeds: int) -> str:
    return mutations.noticed(mutations.ALL[index], _server, range(1, seeds + 1))


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-simulation-"))
    folder.chmod(0o711)
    try:
        with ProcessPoolExecutor(jobs, initializer=_start_server, initargs=(folder,)) as workers:
            yield workers
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_server(folder: Path) -> None:
    """Give this worker a Valkey of its own; it ends with the worker."""
    global _server
    valkey = ValkeyServer(Path(tempfile.mkdtemp(dir=folder)) / "valkey")
    valkey.start()
    _server = Server(valkey.url)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs per scenario, and per scenario of a mutation")
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    parser.add_argument("--mutations", action="store_true", help="also take out each rule in turn")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, each with a Valkey of its own")
    parser.add_argument("--no-write", action="store_true", help=f"do not write {_RESULT.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
