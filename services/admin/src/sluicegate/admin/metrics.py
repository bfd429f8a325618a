"""Metrics of the admin service."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """Counters and gauges, by what they mean."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._changes = Counter(
            "sluicegate_admin_changes",
            "Changes, by whether every live edge had them in time.",
            ["propagated"],
            registry=self.registry,
        )
        self._propagation = Histogram(
            "sluicegate_admin_propagation_seconds",
            "From the commit until every live edge had the change.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.outbox_rows = Gauge(
            "sluicegate_admin_outbox_rows", "Committed changes that are still to be told.", registry=self.registry
        )
        self.live_edges = Gauge(
            "sluicegate_admin_live_edges", "Edge processes heard within five seconds.", registry=self.registry
        )
        self.told = Gauge(
            "sluicegate_admin_told_records", "Records told to the edges since the start.", registry=self.registry
        )
        self.repaired = Gauge(
            "sluicegate_admin_repaired_entries", "Bucket entries found wrong since the start.", registry=self.registry
        )

    def count_change(self, *, propagated: bool, seconds: float) -> None:
        """Count a change and the time it took to reach the edges."""
        self._changes.labels("true" if propagated else "false").inc()
        if propagated:
            self._propagation.observe(seconds)
