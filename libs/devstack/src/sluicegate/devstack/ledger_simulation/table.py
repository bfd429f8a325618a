"""Outcomes of runs, summed up per scenario, and printed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.devstack.ledger_simulation.run import Outcome

RULES = ("I1", "I2", "I3", "I4", "I5", "bound", "seed", "life", "audit", "false", "end")


@dataclass(frozen=True)
class Row:
    """One scenario over its seeds."""

    scenario: str
    runs: int
    requests: int
    calls_per_request: float
    syncs_per_request: float
    waited_percent: float
    refused_percent: float
    falsely_refused_percent: float
    by_policy: int
    overspent_percent: float
    bound_percent: float
    violations: dict[str, int]

    @staticmethod
    def of(outcomes: Sequence[Outcome]) -> "Row":
        """Sum up the runs of one scenario."""
        counts = [outcome.counts for outcome in outcomes]
        requests = sum(count.requests for count in counts)
        over_percent, bound_percent = max(outcome.overspent_percent for outcome in outcomes)
        return Row(
            scenario=outcomes[0].scenario,
            runs=len(outcomes),
            requests=requests,
            calls_per_request=round(sum(count.calls for count in counts) / requests, 3),
            syncs_per_request=round(sum(count.syncs for count in counts) / requests, 2),
            waited_percent=round(100 * sum(count.waits for count in counts) / requests, 1),
            refused_percent=round(100 * sum(count.refused for count in counts) / requests, 1),
            falsely_refused_percent=round(100 * sum(count.refused_falsely for count in counts) / requests, 2),
            by_policy=sum(count.served_by_policy + count.refused_by_policy for count in counts),
            overspent_percent=round(over_percent, 2),
            bound_percent=round(bound_percent, 2),
            violations={rule: sum(outcome.findings.violations.get(rule, 0) for outcome in outcomes) for rule in RULES},
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_COLUMNS = (
    "scenario",
    "runs",
    "requests",
    "calls/req",
    "syncs/req",
    "waits %",
    "refused %",
    "false %",
    "policy",
    "over %",
    "bound %",
    *RULES,
)


def in_columns(rows: Sequence[Row]) -> str:
    """Return the table as people read it."""
    cells = [
        [
            row.scenario,
            *map(
                str,
                (
                    row.runs,
                    row.requests,
                    row.calls_per_request,
                    row.syncs_per_request,
                    row.waited_percent,
                    row.refused_percent,
                    row.falsely_refused_percent,
                    row.by_policy,
                    row.overspent_percent,
                    row.bound_percent,
                    *row.violations.values(),
                ),
            ),
        ]
        for row in rows
    ]
    return aligned([list(_COLUMNS), *cells])


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of text in columns: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
