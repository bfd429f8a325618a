"""The fault simulation's short form: every kind of fault once, and the central rules taken out in turn.

The long one, with all rules and several seeds, is `./taskw sim:ledger -- --mutations`.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluicegate.devstack.ledger_simulation import faults, mutations, scenarios
from sluicegate.devstack.ledger_simulation.mutations import Mutation
from sluicegate.devstack.ledger_simulation.run import run
from sluicegate.devstack.ledger_simulation.scenarios import Scenario
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.store import Scripts
from sluicegate.devstack.ledger_simulation.workload import ManyMeters

SHORT = [replace(row, seconds=min(row.seconds, 45.0)) for row in scenarios.ALL if "2 000" not in row.name]
MANY = Scenario(
    "240 meters, crashes, bad network, flushes",
    (faults.crashes, faults.lost_messages, faults.late_messages, faults.flushes),
    workload=lambda: ManyMeters(keys=53, requests_per_s=10.0, tight=0.2),
    seconds=40.0,
)
CENTRAL = ("STALE", "LOST:", "REJOIN: a record", "what is held already", "after LOST, what was", "after a long silence")


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    found = Server(redis_url)
    yield found
    found.close()


@pytest.mark.parametrize("scenario", [*SHORT, MANY], ids=lambda row: row.name)
def test_invariants_and_bound_hold_when_things_go_wrong(server: Server, scenario: Scenario) -> None:
    outcome = run(server, scenario, seed=1)

    assert outcome.findings.first == {}
    assert outcome.findings.looks > 100


@pytest.mark.parametrize(
    "mutation", [row for row in mutations.ALL if row.rule.startswith(CENTRAL)], ids=lambda row: row.rule
)
def test_check_fails_when_a_rule_is_taken_out(server: Server, mutation: Mutation) -> None:
    assert mutations.noticed(mutation, server, seeds=(1, 2, 3))


@pytest.mark.parametrize("mutation", mutations.ALL, ids=lambda row: row.rule)
def test_every_rule_can_still_be_taken_out(mutation: Mutation) -> None:
    before = [vars(owner)[name] for owner, name, _ in mutation.methods]
    with mutation.applied():
        assert all(vars(owner)[name] is not old for (owner, name, _), old in zip(mutation.methods, before, strict=True))
    assert [vars(owner)[name] for owner, name, _ in mutation.methods] == before
    assert mutation.scripts() != Scripts() or mutation.methods
