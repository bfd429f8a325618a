"""What this process counts. Labels are never names that come from outside."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One set per process, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "sluicegate_usage_writer_"
        self.stored = Counter(f"{prefix}records_stored", "Records that were new.", registry=self.registry)
        self.repeated = Counter(f"{prefix}records_repeated", "Records that were there.", registry=self.registry)
        self.refused = Counter(f"{prefix}records_refused", "Records for the dead letters.", registry=self.registry)
        self.retried = Counter(f"{prefix}messages_retried", "Messages given back for later.", registry=self.registry)
        self.partitions = Counter(f"{prefix}partitions_made", "Partitions that were missing.", registry=self.registry)
        self.transaction_seconds = Histogram(
            f"{prefix}transaction_seconds", "Time to store one batch.", buckets=_SECONDS, registry=self.registry
        )
        self.pending = Gauge(f"{prefix}pending_messages", "Messages not stored yet.", registry=self.registry)
        self.oldest_unread_seconds = Gauge(
            f"{prefix}oldest_unread_seconds", "Age of the oldest message not stored yet.", registry=self.registry
        )
