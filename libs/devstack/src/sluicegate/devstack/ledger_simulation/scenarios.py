"""The scenarios by name: a workload, and the faults that go on while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluicegate.devstack.ledger_simulation import faults
from sluicegate.devstack.ledger_simulation.faults import Fault
from sluicegate.devstack.ledger_simulation.workload import BusyRates, FewMeters, ManyMeters, Workload
from sluicegate.ledger.policy import WhenStoreAway


@dataclass(frozen=True)
class Scenario:
    """What happens in a run. `has_data_loss` says that the store forgets, which the bound allows for."""

    name: str
    faults: Sequence[Fault] = ()
    workload: Callable[[], Workload] = FewMeters
    edges: int = 4
    seconds: float = 150.0
    auditors: int = 1
    when_store_away: WhenStoreAway = "closed"

    @property
    def is_calm(self) -> bool:
        """Tell whether nothing goes wrong, so that no limit may refuse while much of it is free."""
        return self.faults in {(), (faults.shifting_load,)}

    @property
    def has_data_loss(self) -> bool:
        return faults.flushes in self.faults or faults.failovers in self.faults


ALL = (
    Scenario("calm"),
    Scenario("calm, far from limits", workload=lambda: FewMeters(share_of_limits=20.0)),
    Scenario("calm, 2 000 meters", workload=ManyMeters),
    Scenario("calm, at rates", workload=BusyRates),
    Scenario("calm, shifting load", (faults.shifting_load,), seconds=300.0),
    Scenario("crashes", (faults.crashes,)),
    Scenario("pauses", (faults.pauses,), seconds=300.0),
    Scenario("lost messages", (faults.lost_messages,)),
    Scenario("late messages", (faults.late_messages,)),
    Scenario("outages", (faults.outages,)),
    Scenario("partitions", (faults.partitions,)),
    Scenario(
        "rates, crashes, partitions, lost messages",
        (faults.crashes, faults.partitions, faults.lost_messages),
        BusyRates,
    ),
    Scenario("slow store", (faults.slowness,)),
    Scenario("flushes", (faults.flushes,)),
    Scenario("failovers", (faults.failovers,)),
    Scenario("lowered limits", (faults.lowered_limits,)),
    Scenario("lagging Postgres", (faults.lagging_postgres, faults.crashes, faults.lost_messages)),
    Scenario(
        "crashes, pauses, bad network", (faults.crashes, faults.pauses, faults.lost_messages, faults.late_messages)
    ),
    Scenario(
        "everything",
        (
            faults.crashes,
            faults.pauses,
            faults.lost_messages,
            faults.late_messages,
            faults.outages,
            faults.flushes,
            faults.failovers,
            faults.lagging_postgres,
        ),
        seconds=300.0,
    ),
    Scenario("outages, local share", (faults.outages,), when_store_away="local-share"),
    Scenario(
        "bad network, slow, local share",
        (faults.lost_messages, faults.late_messages, faults.slowness),
        when_store_away="local-share",
    ),
    Scenario(
        "2 000 meters, crashes, bad network, flushes",
        (faults.crashes, faults.lost_messages, faults.late_messages, faults.flushes),
        workload=lambda: ManyMeters(tight=0.2),
    ),
    Scenario("2 000 meters, partitions, failovers", (faults.partitions, faults.failovers), workload=ManyMeters),
    Scenario(
        "pauses, far away, far from limits",
        (faults.pauses, faults.far_away),
        workload=lambda: FewMeters(share_of_limits=5.0),
        seconds=300.0,
    ),
    Scenario(
        "270 meters, far away, bad network, failovers, 12 auditors",
        (faults.far_away, faults.partitions, faults.lost_messages, faults.failovers),
        workload=lambda: ManyMeters(keys=60, requests_per_s=12.0),
        seconds=300.0,
        auditors=12,
    ),
    Scenario(
        "270 meters, partitions, lagging Postgres, 12 auditors",
        (faults.partitions, faults.lagging_postgres),
        workload=lambda: ManyMeters(keys=60, requests_per_s=12.0),
        seconds=300.0,
        auditors=12,
    ),
)


def named(name: str) -> Scenario:
    """Return a scenario by its name."""
    return next(scenario for scenario in ALL if scenario.name == name)
