"""The table of what limits cost: bars, exactness and recovery are said as they are."""

from pathlib import Path
from typing import Any

from benchmarks.limits import rendering
from benchmarks.limits.__main__ import _judged


def load(**changes: Any) -> dict[str, Any]:
    found = {
        "edge_workers": 2,
        "keys": 20,
        "slowest_key_per_minute": 400,
        "rate_per_s": 500.0,
        "requests": 100,
        "served": 100,
        "scripts_per_request": 0.011,
        "calls_per_request": 0.01,
        "syncs_per_request": 0.13,
        "waits_share": 0.006,
    }
    return found | changes


def result(**loads: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a CPU", "cores": 2, "measured_on": "2026-01-01"},
        "loads": loads,
        "kill": {"broken": 3, "equal_after_s": 70.2, "bar_s": 120.0, "holds": True},
    }


def test_bar_holds_only_when_calls_waits_and_answers_do() -> None:
    assert _judged("busy", load())["holds"]
    assert not _judged("busy", load(calls_per_request=0.021))["holds"]
    assert not _judged("busy", load(scripts_per_request=0.021))["holds"]
    assert not _judged("busy", load(waits_share=0.011))["holds"]
    assert not _judged("busy", load(served=99))["holds"]


def test_what_is_not_exact_does_not_hold_whatever_it_cost() -> None:
    assert _judged("near_rate", load(is_exact=True, served=50))["holds"]
    assert not _judged("near_rate", load(is_exact=False))["holds"]


def test_table_says_what_does_not_hold() -> None:
    text = rendering.render(
        result(
            busy=_judged("busy", load(waits_share=0.02)),
            near_rate=_judged("near_rate", load(is_exact=False, limit=3_000, most_in_a_minute=3_001)),
        )
    )
    assert text.count("**does not hold**") == 2
    assert "at most 3,001 in any minute: **not exact**" in text
    assert "after 70 s, bar 120 s, holds" in text


def test_table_goes_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{rendering.OPENING}\nyesterday\n{rendering.CLOSING}\nafter\n")
    assert rendering.write_into(readme, result(busy=_judged("busy", load())))
    text = readme.read_text()
    assert "yesterday" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    readme.write_text("no markers")
    assert not rendering.write_into(readme, result())
