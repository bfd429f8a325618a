"""The README's table of what limits cost, from the JSON result and from nothing else."""

from pathlib import Path
from typing import Any, Final

OPENING: Final = "<!-- bench:limits -->"
CLOSING: Final = "<!-- /bench:limits -->"

_TITLES: Final = {
    "busy": "{keys} busy keys, each above {slowest_key_per_minute} a minute; 12 meters a request",
    "busy_spread": "the same over more workers than cores: 100 requests/s each, and 2 to 3 calls/s of its own",
    "mixed": "mixed population, {keys} keys with {meters:,} meters, Zipf",
    "near_budget": "at a team's budget, from 80 % of it on; 12 meters a request",
    "near_rate": "at a team's requests per minute, from 80 % on; 12 meters a request",
}

_METHOD: Final = """\
Method (`./taskw bench:limits`): a whole stack; requests at a steady pace over 64 connections, used in turn. Store calls
are the scripts that Valkey's `INFO commandstats` counts, whoever sent them (the auditor rests); by the edge's own count
they are {own}. Waits are counted by the edge.
Limits are on key, team and department: requests and tokens per minute, open requests and a budget each (the mixed
population: all of these on its keys, a budget on its teams)."""


def render(result: dict[str, Any]) -> str:
    """Markdown: the table, what was exact, and how it came about."""
    loads = result["loads"]
    order = [name for name in _TITLES if name in loads]
    lines = [
        "What limits cost: calls of Valkey and waiting requests, far from limits and at them:",
        "",
        "| load | workers | requests/s | waited | bar | store calls a request | bar | meters synced a request | |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
        *(_row(name, loads[name]) for name in order),
        "",
        *_exactness(loads),
        *_recovery(result),
        "",
        _METHOD.format(own=_own(loads, order)),
        f"{result['machine']['cpu']}, {result['machine']['cores']} cores; {result['machine']['measured_on']}.",
    ]
    return "\n".join(lines)


def write_into(readme: Path, result: dict[str, Any]) -> bool:
    """Put the table between the markers; False when the file has none."""
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, opening, rest = text.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not opening or not closing:
        return False
    readme.write_text(f"{before}{OPENING}\n{render(result)}\n{CLOSING}{after}", encoding="utf-8")
    return True


def _row(name: str, load: dict[str, Any]) -> str:
    bar_waits, bar_calls = load["bar_waits_share"], load["bar_calls_per_request"]
    cells = (
        _TITLES[name].format(**load),
        str(load["edge_workers"]),
        f"{load['rate_per_s']:.0f}",
        f"{load['waits_share']:.1%}",
        "reported" if bar_waits is None else f"≤ {bar_waits:.0%}",
        f"**{load['scripts_per_request']:.3f}**",
        "reported" if bar_calls is None else f"≤ {bar_calls:g}",
        f"{load['syncs_per_request']:.2f}",
        "" if bar_calls is None else _holds(holds=load["holds"]),
    )
    return f"| {' | '.join(cells)} |"


def _exactness(loads: dict[str, Any]) -> list[str]:
    lines = []
    if "near_budget" in loads:
        load = loads["near_budget"]
        lines.append(
            f"- At the budget of {_usd(load['limit_nano_usd'])}: {_usd(load['spent_nano_usd'])} spent, never more than "
            f"{_usd(load['most_taken_nano_usd'])} spent and held: {_exact(load)}."
        )
    if "near_rate" in loads:
        load = loads["near_rate"]
        lines.append(
            f"- At {load['limit']:,} requests a minute: at most {load['most_in_a_minute']:,} in any minute: "
            f"{_exact(load)}."
        )
    return lines


def _recovery(result: dict[str, Any]) -> list[str]:
    if "kill" not in result:
        return []
    kill = result["kill"]
    text = (
        f"- `kill -9` of an edge worker with leases out and {kill['broken']} requests open: the budgets' meters equal "
        f"PostgreSQL after {kill['equal_after_s']:.0f} s, bar {kill['bar_s']:.0f} s, {_holds(holds=kill['holds'])}."
    )
    return [text]


def _own(loads: dict[str, Any], order: list[str]) -> str:
    return ", ".join(f"{loads[name]['calls_per_request']:.3f}" for name in order)


def _usd(nano_usd: int) -> str:
    return f"{nano_usd / 1e9:,.2f} USD"


def _exact(load: dict[str, Any]) -> str:
    return "exact" if load["is_exact"] else "**not exact**"


def _holds(*, holds: bool) -> str:
    return "holds" if holds else "**does not hold**"
