"""What this process counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """One set per process, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.made = Counter("sluicegate_retention_partitions_made", "Partitions made.", registry=self.registry)
        self.last_run = Gauge(
            "sluicegate_retention_last_run_timestamp_seconds", "When a run last ended well.", registry=self.registry
        )
