"""Medians, bars and the rendered table of the comparison."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import rendering, verdict
from benchmarks.compare.harness import Sample
from benchmarks.compare.modes import Mode

from sluicegate.devstack.load.job import Result, Spread

_JSON = Mode("json", "JSON", "json", 12, "", 64, 1.0, bar=4.5)


def sample(
    contender: str, *, cpu_us: float = 20.0, p50_us: float = 50.0, errors: dict[str, int] | None = None
) -> Sample:
    spread = Spread(p50_us=p50_us, p90_us=p50_us, p99_us=2 * p50_us, max_us=3 * p50_us)
    result = Result(
        answered=100, errors=errors or {}, wall_s=1.0, driver_cpu_s=0.4, watched_cpu_s={}, latency=spread,
        first_byte=spread, tail=spread, lateness=None, body_digests=["same"], connections_opened=1,
    )  # fmt: skip
    return Sample(
        contender=contender, mode="json", answered=100, errors=errors or {}, requests_per_s=100.0,
        cpu_us_per_request=cpu_us, proxy_share=0.95, driver_share=0.4, provider_share=0.4, neighbour_share=0.1, foreign_share=0.0,
        limit="proxy", result=result,
    )  # fmt: skip


def pairs(*ratios: float) -> list[verdict.Pair]:
    return [(sample("nginx", cpu_us=20), sample("edge", cpu_us=20 * ratio)) for ratio in ratios]


@pytest.mark.parametrize(("ratios", "holds"), [((1, 4.5, 9), True), ((1, 4.6, 4.7), False)])
def test_bar_is_held_by_the_median_of_the_ratios(ratios: tuple[float, ...], holds: bool) -> None:
    assert verdict.cpu_verdict(_JSON, pairs(*ratios))["holds"] is holds


def test_mode_without_a_bar_is_only_reported() -> None:
    mode = Mode("own", "own", "json", 12, "", 16, 1.0)
    assert verdict.cpu_verdict(mode, pairs(99))["holds"] is None


def latency(direct_us: float, edge_us: float) -> dict[str, Any]:
    rounds = [
        {"direct": sample("direct", p50_us=direct_us), "nginx": sample("nginx"), "edge": sample("edge", p50_us=edge_us)}
    ]
    return verdict.latency_verdict(_JSON, rounds)


def test_added_latency_is_the_difference_to_the_direct_way() -> None:
    found = latency(20, 120)
    assert found["added_by_edge"]["p50_us"] == 100
    assert [bar["holds"] for bar in verdict.latency_bars([found])] == [True, True]
    assert [bar["holds"] for bar in verdict.latency_bars([latency(20, 171)])] == [False, True]


def test_wrong_answers_and_differing_bodies_are_named() -> None:
    odd = sample("edge", errors={"timeout": 2})
    assert verdict.wrong_answers([odd, odd, sample("nginx")]) == {"edge json: timeout": 4}
    assert verdict.differing_bodies([odd, sample("nginx")]) == []


def result() -> dict[str, Any]:
    packages = {"uvloop": "1"}
    machine = {
        "cpu": "CPU",
        "cores": 2,
        "kernel": "6",
        "python": "3",
        "nginx": "1",
        "packages": packages,
        "measured_on": "day",
    }
    found = latency(20, 120)
    return {
        "machine": machine, "cpu": [verdict.cpu_verdict(_JSON, pairs(2, 3, 5))],
        "harness_alone": [verdict.harness_figures(_JSON, sample("direct"))], "latency": [found],
        "bars": verdict.latency_bars([found]), "answered": 1234, "wrong_answers": {}, "differing_bodies": [],
    }  # fmt: skip


def test_table_replaces_only_what_stands_between_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{rendering.OPENING}\nstale\n{rendering.CLOSING}\nafter\n")
    assert rendering.write_into(readme, result())
    text = readme.read_text()
    assert text.startswith(f"before\n{rendering.OPENING}\n")
    assert text.endswith(f"\n{rendering.CLOSING}\nafter\n")
    assert "| JSON | 64 | 20 | 60 | **3.00** | ≤ 4.5 | holds |" in text
    assert "JSON: 100 requests/s (provider 4000 µs, driver 4000 µs)" in text
    assert "1,234 right, 0 wrong" in text
    assert "stale" not in text


def test_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("text")
    assert not rendering.write_into(readme, result())
    assert readme.read_text() == "text"
