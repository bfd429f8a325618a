"""The README's table, from the JSON result and from nothing else."""

from pathlib import Path
from typing import Any

OPENING = "<!-- bench:compare -->"
CLOSING = "<!-- /bench:compare -->"

_METHOD = """\
Method (`./taskw bench:compare`): nginx and the edge take turns, {pairs} pairs in one run; the ratio is the median of
the pairs' ratios. CPU is read from the processes' own clocks around each run.

- nginx: one worker, `proxy_buffering off`, kept connections to the provider, access log off.
- The edge: one process of a whole stack with everything on: key check; limits of requests, tokens and open requests
  and a budget on the key, its team and its department (12 meters); usage record, journal, NATS and Valkey.
- The proxy has a core to itself. The fake provider, the load driver and the rest of the stack share the other, so that
  nothing takes time from the proxy.
- Every answer is checked to its last byte: {right} right, {wrong} wrong.
- Without a proxy, provider and driver do on their core: {alone}.
- What kept a run from going faster, nginx / edge: {limits}.
- Other work on the machine took up to {foreign} of a core during a run."""


def render(result: dict[str, Any]) -> str:
    """Markdown: the tables, and how they came about."""
    lines = [
        "CPU time of the proxy process for one request, in µs:",
        "",
        "| traffic | connections | nginx | edge | edge ÷ nginx | bar | |",
        "|---|--:|--:|--:|--:|--:|---|",
        *(_cpu_row(row) for row in result["cpu"]),
        "",
        "Latency of one client, in µs (p50 / p99), and the stream's tail (first byte to last byte, or to the close):",
        "",
        "| traffic | direct | nginx | edge | added by the edge | added tail, p50 |",
        "|---|--:|--:|--:|--:|--:|",
        *(_latency_row(row) for row in result["latency"]),
        "",
        *(
            f"- {bar['what']}: {bar['value_us']:.0f} µs, bar {bar['bar_us']} µs, {_holds(bar['holds'])}."
            for bar in result["bars"]
        ),
        "",
        _machine(result["machine"]),
        "",
        _method(result),
    ]
    return "\n".join(lines)


def write_into(readme: Path, result: dict[str, Any]) -> bool:
    """Puts the table between the markers; False when the file has none."""
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, opening, rest = text.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not opening or not closing:
        return False
    readme.write_text(f"{before}{OPENING}\n{render(result)}\n{CLOSING}{after}", encoding="utf-8")
    return True


def _cpu_row(row: dict[str, Any]) -> str:
    bar = f"≤ {row['bar']:g}" if row["bar"] else "reported"
    nginx, edge = row["nginx"], row["edge"]
    figures = f"{nginx['cpu_us_per_request']:.0f} | {edge['cpu_us_per_request']:.0f} | **{row['ratio']:.2f}**"
    return f"| {row['title']} | {row['connections']} | {figures} | {bar} | {_holds(row['holds'])} |"


def _latency_row(row: dict[str, Any]) -> str:
    cells = [f"{row[name]['p50_us']:.0f} / {row[name]['p99_us']:.0f}" for name in ("direct", "nginx", "edge")]
    added = row["added_by_edge"]
    tail = f"{added['tail_p50_us']:.0f}" if row["mode"].startswith("stream") else "–"
    return f"| {row['title']} | {' | '.join(cells)} | {added['p50_us']:.0f} / {added['p99_us']:.0f} | {tail} |"


def _holds(holds: bool | None) -> str:
    return {True: "holds", False: "**does not hold**", None: ""}[holds]


def _machine(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {found}" for name, found in machine["packages"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores; Linux {machine['kernel']}, Python {machine['python']}, "
        f"nginx {machine['nginx']}, {packages}; {machine['measured_on']}."
    )


def _method(result: dict[str, Any]) -> str:
    return _METHOD.format(
        pairs=max(row["pairs"] for row in result["cpu"]),
        right=f"{result['answered']:,}",
        wrong=sum(result["wrong_answers"].values()),
        alone="; ".join(map(_alone, result["harness_alone"])),
        limits=_limits(result["cpu"]),
        foreign=f"{max(row[side]['foreign_share'] for row in result['cpu'] for side in ('nginx', 'edge')):.0%}",
    )


def _alone(row: dict[str, Any]) -> str:
    provider, driver = row["provider_us_per_request"], row["driver_us_per_request"]
    return f"{row['title']}: {row['requests_per_s']:,} requests/s (provider {provider:.0f} µs, driver {driver:.0f} µs)"


def _limits(rows: list[dict[str, Any]]) -> str:
    words = {"proxy": "the proxy", "harness": "the harness", "pace": "the traffic's own pace"}
    return "; ".join(f"{row['title']}: {words[row['nginx']['limit']]} / {words[row['edge']['limit']]}" for row in rows)
