"""What this process counts. Labels are never names that come from outside."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One set per process, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "sluicegate_budget_alert_"
        self.stored = Counter(f"{prefix}alerts_stored", "Thresholds that were new.", registry=self.registry)
        self.repeated = Counter(f"{prefix}alerts_repeated", "Thresholds that were there.", registry=self.registry)
        self.attempts = Counter(
            f"{prefix}attempts", "Attempts at deliveries, by what came of them.", ["outcome"], registry=self.registry
        )
        for outcome in ("delivered", "pending", "dead"):
            self.attempts.labels(outcome)
        self.buried = Counter(
            f"{prefix}deliveries_buried", "Deliveries that ended without a last attempt.", registry=self.registry
        )
        self.attempt_seconds = Histogram(
            f"{prefix}attempt_seconds", "Time of one attempt.", buckets=_SECONDS, registry=self.registry
        )
        self.under_way = Gauge(f"{prefix}deliveries_under_way", "Attempts being made.", registry=self.registry)
        self.pending = Gauge(f"{prefix}deliveries_pending", "Deliveries not at their end.", registry=self.registry)
        self.audited = Counter(f"{prefix}meters_audited", "Meters compared.", registry=self.registry)
        self.busy = Counter(
            f"{prefix}meters_busy", "Meters that an edge was using and had not reported on.", registry=self.registry
        )
        self.unknown = Counter(
            f"{prefix}spent_unknown", "Meters compared with nothing: usage-writer was behind.", registry=self.registry
        )
        self.repaired = Counter(
            f"{prefix}repaired_nano_usd", "What audits changed meters by.", ["direction"], registry=self.registry
        )
        for direction in ("up", "down"):
            self.repaired.labels(direction)
        self.drift = Gauge(
            f"{prefix}drift_nano_usd", "Meters above PostgreSQL after the last audit, added up.", registry=self.registry
        )
        self.busy_last_run = Gauge(f"{prefix}busy_meters", "Busy meters of the last audit.", registry=self.registry)
        self.last_audit = Gauge(
            f"{prefix}last_audit_timestamp_seconds", "When an audit last ended well.", registry=self.registry
        )
        self.found = Counter(f"{prefix}thresholds_found", "Thresholds that only audits found.", registry=self.registry)
