"""The fault simulation's short form: every kind of fault once, with limits that are reached."""

from collections.abc import Iterator

import pytest

from sluicegate.devstack.ledger_simulation import scenarios
from sluicegate.devstack.ledger_simulation.run import run
from sluicegate.devstack.ledger_simulation.server import Server


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    found = Server(redis_url)
    yield found
    found.close()


@pytest.mark.parametrize(
    "scenario", [row for row in scenarios.ALL if "2 000" not in row.name], ids=lambda row: row.name
)
def test_ledger_keeps_its_invariants_and_its_bound(server: Server, scenario: scenarios.Scenario) -> None:
    outcome = run(server, scenario, seed=1)

    assert outcome.findings.first == {}
    assert outcome.findings.looks > 1000
