"""`python -m benchmarks.compare`: measures, writes the JSON result, and renders it into the README."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare import contenders, machine, rendering, verdict
from benchmarks.compare.contenders import Contender
from benchmarks.compare.harness import Harness, Sample, harness
from benchmarks.compare.modes import CPU_MODES, LATENCY_MODES, Mode
from benchmarks.compare.processes import listener, pin
from sluicegate.devstack.stack_client import Stack

_ROOT = Path(__file__).parents[2]
_RESULT = _ROOT / "benchmarks" / "results" / "compare.json"
_PAIRS = 7
_QUICK_PAIRS = 3
_REPORTED_PAIRS = 3
_QUICK_SECONDS = 0.4


def main() -> int:
    """0 if every answer was right and every bar holds, 1 otherwise."""
    options = _options()
    if options.render:
        return _render(json.loads(_RESULT.read_text(encoding="utf-8")), options)
    with contenders.scratch_folder() as folder, _ways(options, folder) as ways:
        result = _measure(*ways, options)
    if not options.quick and not options.modes:
        _RESULT.parent.mkdir(exist_ok=True)
        _RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return _render(result, options)


def _render(result: dict[str, Any], options: argparse.Namespace) -> int:
    print(rendering.render(result))
    if not options.quick and not options.modes and not rendering.write_into(_ROOT / "README.md", result):
        print(f"README.md has no {rendering.OPENING} markers; nothing rendered there", file=sys.stderr)
    for problem in result["wrong_answers"], result["differing_bodies"]:
        if problem:
            print(f"wrong: {problem}", file=sys.stderr)
    missed = [row for row in [*result["cpu"], *result["bars"]] if row["holds"] is False]
    return 1 if missed or result["wrong_answers"] or result["differing_bodies"] else 0


@contextmanager
def _ways(
    options: argparse.Namespace, folder: Path
) -> Iterator[tuple[Harness, Contender, Contender, Contender | None]]:
    """The harness and the contenders: direct, nginx, and the edge that the options name."""
    with ExitStack() as stack:
        if options.stack:
            found = Stack.read(options.stack)
            url = found.provider_url
            edge = contenders.edge_of_stack(found)
        elif options.edge_url:
            url = options.provider_url
            edge = contenders.edge_by_pid(options.edge_url, options.edge_pid, options.model, options.key)
        else:
            url = stack.enter_context(contenders.provider(folder))
            edge = None
            if not options.no_edge:
                edge = contenders.edge_of_stack(stack.enter_context(contenders.started_stack(url, folder)))
        pids = [pid for pid in [listener(contenders.port_of(url))] if pid]
        pin(pids, contenders.HARNESS_CORE)
        if edge:
            pin(edge.pids, contenders.PROXY_CORE)
            pin(edge.neighbours, contenders.HARNESS_CORE)
        nginx = stack.enter_context(contenders.nginx(url, folder))
        yield stack.enter_context(harness(folder, pids)), contenders.direct(url), nginx, edge


def _measure(
    load: Harness, direct: Contender, nginx: Contender, edge: Contender | None, options: argparse.Namespace
) -> dict[str, Any]:
    described = machine.description()
    edge = edge or replace(nginx, name="edge")
    samples: list[Sample] = []
    cpu = []
    for mode in _chosen(CPU_MODES, options):
        pairs = _pairs(load, mode, nginx, edge, options)
        samples += [sample for pair in pairs for sample in pair]
        cpu.append(verdict.cpu_verdict(mode, pairs))
        _say(cpu[-1])
    alone = [
        verdict.harness_figures(mode, load.sample(direct, mode, seconds=_QUICK_SECONDS if options.quick else None))
        for mode in _chosen(CPU_MODES, options)
        if mode.is_kept and "pace_ms" not in mode.fake
    ]
    latency = []
    for mode in _chosen(LATENCY_MODES, options):
        rounds = _rounds(load, mode, [direct, nginx, edge], options)
        samples += [sample for round_ in rounds for sample in round_.values()]
        latency.append(verdict.latency_verdict(mode, rounds))
    return {
        "machine": described,
        "cpu": cpu,
        "harness_alone": alone,
        "latency": latency,
        "bars": verdict.latency_bars(latency),
        "answered": sum(sample.answered for sample in samples),
        "wrong_answers": verdict.wrong_answers(samples),
        "differing_bodies": verdict.differing_bodies(samples),
    }


def _pairs(
    load: Harness, mode: Mode, nginx: Contender, edge: Contender, options: argparse.Namespace
) -> list[verdict.Pair]:
    """Alternating: who goes first changes with each pair, after one short run of each that is not counted."""
    seconds = _QUICK_SECONDS if options.quick else None
    if mode.requests is None:
        for contender in (nginx, edge):
            load.sample(contender, mode, seconds=_QUICK_SECONDS)
    count = _QUICK_PAIRS if options.quick else _PAIRS if mode.bar else _REPORTED_PAIRS
    pairs = []
    for index in range(count):
        order = (nginx, edge) if index % 2 == 0 else (edge, nginx)
        pair = {contender.name: load.sample(contender, mode, seconds=seconds) for contender in order}
        pairs.append((pair["nginx"], pair["edge"]))
    return pairs


def _rounds(load: Harness, mode: Mode, ways: list[Contender], options: argparse.Namespace) -> list[verdict.Round]:
    seconds = _QUICK_SECONDS / 2 if options.quick else None
    count = _QUICK_PAIRS if options.quick else _PAIRS
    for contender in ways:
        load.sample(contender, mode, seconds=0.1)
    return [{contender.name: load.sample(contender, mode, seconds=seconds) for contender in ways} for _ in range(count)]


def _chosen(modes: Sequence[Mode], options: argparse.Namespace) -> list[Mode]:
    if options.modes:
        return [mode for mode in modes if mode.name in options.modes.split(",")]
    if options.quick:
        return [mode for mode in modes if mode.is_kept]
    return list(modes)


def _say(row: dict[str, Any]) -> None:
    nginx, edge = row["nginx"], row["edge"]
    figures = f"nginx {nginx['cpu_us_per_request']} µs, edge {edge['cpu_us_per_request']} µs, ratio {row['ratio']}"
    print(
        f"{row['title']}: {figures} {row['ratios']}, limit {nginx['limit']}/{edge['limit']}",
        file=sys.stderr,
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short pairs of the kept modes; nothing is written")
    parser.add_argument("--modes", help="only these, by name, separated by commas; nothing is written")
    parser.add_argument("--render", action="store_true", help="render the last result again, measure nothing")
    parser.add_argument("--stack", type=Path, metavar="STACK_JSON", help="measure a stack that runs already")
    parser.add_argument("--edge-url", help="measure any running edge; needs --edge-pid")
    parser.add_argument("--edge-pid", type=int, action="append", help="its process; may be given more than once")
    parser.add_argument("--provider-url", help="the fake provider behind --edge-url")
    parser.add_argument("--key", default="", help="key for --edge-url")
    parser.add_argument("--model", default="fake-gpt", help="model for --edge-url")
    parser.add_argument("--no-edge", action="store_true", help="nginx against itself: how much the harness wavers")
    options = parser.parse_args()
    if options.edge_url and not (options.edge_pid and options.provider_url):
        parser.error("--edge-url needs --edge-pid and --provider-url")
    return options


if __name__ == "__main__":
    sys.exit(main())
