"""How often the store of meters was asked during a run: by Valkey's own count and by the edge's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sluicegate.devstack.limits.calls import Answer, served
from sluicegate.devstack.limits.edge_numbers import metric
from sluicegate.devstack.limits.meter_readings import MeterReadings
from sluicegate.devstack.stack_client import Stack

_NAMES = ("store_calls", "meter_syncs", "waits", "seeded_budgets", "policy_served", "policy_refused")


@dataclass
class Counted:
    """Counts of one run. `scripts`: all that Valkey ran, of whichever process."""

    answers: list[Answer] = field(default_factory=list)
    scripts: int = 0
    edge: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Per request, as the bars are."""
        requests = len(self.answers)
        refusals: dict[str, int] = {}
        for answer in self.answers:
            if not answer.is_served:
                refusals[answer.code] = refusals.get(answer.code, 0) + 1
        return {
            "requests": requests,
            "served": served(self.answers),
            "refusals": refusals,
            "scripts_per_request": round(self.scripts / requests, 4),
            "calls_per_request": round(self.edge["store_calls"] / requests, 4),
            "syncs_per_request": round(self.edge["meter_syncs"] / requests, 3),
            "waits_share": round(self.edge["waits"] / requests, 4),
            "seeded_budgets": self.edge["seeded_budgets"],
            "policy_served": self.edge["policy_served"],
            "policy_refused": self.edge["policy_refused"],
        }


@asynccontextmanager
async def counted(stack: Stack, meters: MeterReadings) -> AsyncIterator[Counted]:
    """Count what happens inside; the answers are the caller's to fill in."""
    found = Counted()
    before, scripts = await _edge(stack), await meters.script_calls()
    yield found
    found.scripts = await meters.script_calls() - scripts
    after = await _edge(stack)
    found.edge = {name: after[name] - before[name] for name in _NAMES}


async def _edge(stack: Stack) -> dict[str, int]:
    return {name: int(await metric(stack, f"limits_{name}_total")) for name in _NAMES}
