"""From samples to the figures that are quoted: medians over alternating pairs, ratios, bars. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.compare.harness import Sample
from benchmarks.compare.modes import ADDED_P50_BAR_US, ADDED_P99_BAR_US, ADDED_TAIL_P50_BAR_US, Mode
from sluicegate.devstack.load.job import Spread

Pair = tuple[Sample, Sample]
"""nginx and the edge, measured one right after the other."""
Round = dict[str, Sample]
"""One sample of each contender, by name."""


def cpu_verdict(mode: Mode, pairs: Sequence[Pair]) -> dict[str, Any]:
    """CPU per request of both, the median of the pairs' ratios, and whether the bar holds."""
    ratios = [edge.cpu_us_per_request / nginx.cpu_us_per_request for nginx, edge in pairs]
    ratio = median(ratios)
    return {
        "mode": mode.name,
        "title": mode.title,
        "connections": mode.connections,
        "pairs": len(pairs),
        "nginx": _side([nginx for nginx, _ in pairs]),
        "edge": _side([edge for _, edge in pairs]),
        "ratios": [round(value, 2) for value in ratios],
        "ratio": round(ratio, 2),
        "bar": mode.bar,
        "holds": None if mode.bar is None else ratio <= mode.bar,
    }


def harness_figures(mode: Mode, sample: Sample) -> dict[str, Any]:
    """What provider and driver do on their core when no proxy stands between them."""
    per_request_us = sample.result.wall_s * 1e6 / max(sample.answered, 1)
    return {
        "mode": mode.name,
        "title": mode.title,
        "requests_per_s": round(sample.requests_per_s),
        "provider_us_per_request": round(sample.provider_share * per_request_us, 1),
        "driver_us_per_request": round(sample.driver_share * per_request_us, 1),
    }


def latency_verdict(mode: Mode, rounds: Sequence[Round]) -> dict[str, Any]:
    """Latency of each contender with one client, and what each proxy adds to it; medians over the rounds."""
    names = list(rounds[0])
    found: dict[str, Any] = {"mode": mode.name, "title": mode.title, "rounds": len(rounds)}
    for name in names:
        found[name] = {
            "p50_us": _median_of(rounds, name, "latency", "p50_us"),
            "p99_us": _median_of(rounds, name, "latency", "p99_us"),
            "tail_p50_us": _median_of(rounds, name, "tail", "p50_us"),
            "answered": sum(round_[name].answered for round_ in rounds),
        }
    for name in names:
        if name != "direct":
            found[f"added_by_{name}"] = {
                key: round(found[name][key] - found["direct"][key], 1) for key in ("p50_us", "p99_us", "tail_p50_us")
            }
    return found


def latency_bars(latencies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bars on what the edge adds for one client, on kept connections; the tail in every kind of stream."""
    bars = []
    for found in latencies:
        added = found.get("added_by_edge")
        if added is None:
            continue
        is_stream = found["mode"].startswith("stream")
        if found["mode"] in {"json", "stream_once"}:
            bars.append(_bar(f"added latency p50, {found['title']}", added["p50_us"], ADDED_P50_BAR_US))
            bars.append(_bar(f"added latency p99, {found['title']}", added["p99_us"], ADDED_P99_BAR_US))
        if is_stream:
            bars.append(_bar(f"added stream tail p50, {found['title']}", added["tail_p50_us"], ADDED_TAIL_P50_BAR_US))
    return bars


def wrong_answers(samples: Sequence[Sample]) -> dict[str, int]:
    """Answers that were not right, by contender, mode and reason."""
    wrong: dict[str, int] = {}
    for sample in samples:
        for reason, count in sample.errors.items():
            key = f"{sample.contender} {sample.mode}: {reason}"
            wrong[key] = wrong.get(key, 0) + count
    return wrong


def differing_bodies(samples: Sequence[Sample]) -> list[str]:
    """Modes in which the contenders did not all deliver the same bytes."""
    seen: dict[str, set[str]] = {}
    for sample in samples:
        seen.setdefault(sample.mode, set()).update(sample.result.body_digests)
    return sorted(mode for mode, digests in seen.items() if len(digests) > 1)


def _side(samples: Sequence[Sample]) -> dict[str, Any]:
    limits = [sample.limit for sample in samples]
    return {
        "cpu_us_per_request": round(median(sample.cpu_us_per_request for sample in samples), 1),
        "cpu_us_each_run": [round(sample.cpu_us_per_request, 1) for sample in samples],
        "requests_per_s": round(median(sample.requests_per_s for sample in samples)),
        "answered": sum(sample.answered for sample in samples),
        "proxy_share": round(median(sample.proxy_share for sample in samples), 2),
        "driver_share": round(median(sample.driver_share for sample in samples), 2),
        "provider_share": round(median(sample.provider_share for sample in samples), 2),
        "neighbour_share": round(median(sample.neighbour_share for sample in samples), 2),
        "foreign_share": round(median(sample.foreign_share for sample in samples), 2),
        "limit": max(set(limits), key=limits.count),
    }


def _median_of(rounds: Sequence[Round], name: str, what: str, key: str) -> float:
    spreads: list[Spread | None] = [getattr(round_[name].result, what) for round_ in rounds]
    values: list[float] = [getattr(spread, key) for spread in spreads if spread is not None]
    return round(median(values), 1) if values else 0.0


def _bar(what: str, value_us: float, bar_us: float) -> dict[str, Any]:
    return {"what": what, "value_us": value_us, "bar_us": bar_us, "holds": value_us <= bar_us}
