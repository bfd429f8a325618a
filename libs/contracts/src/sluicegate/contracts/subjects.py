"""NATS subjects, streams, consumers and buckets, declared as data. `bus` creates them; docs list them.

Subjects are made of generated ids, never of names.
"""

from typing import Final

import msgspec

REQUEST_COMPLETED: Final = "gateway.request.completed"
AUTH_FAILED: Final = "gateway.auth.failed"
BUDGET_THRESHOLD: Final = "gateway.budget.threshold"
ALERTS_COMMAND: Final = "gateway.alerts.command"
INVALIDATION_APPLIED: Final = "gateway.invalidation.applied"
AUDIT: Final = "gateway.audit"
RETENTION_COMMAND: Final = "gateway.retention.command"
RETENTION_COMPLETED: Final = "gateway.retention.completed"
DEADLETTER: Final = "gateway.deadletter"
RPC_BUDGET_SPENT: Final = "gateway.rpc.budget.spent"

HEADER_MESSAGE_ID: Final = "Nats-Msg-Id"
HEADER_SCHEMA: Final = "Sluicegate-Schema"

MAX_EVENTS_PER_MESSAGE: Final = 500
MAX_MESSAGE_BYTES: Final = 256 * 1024

_DAY_S: Final = 86_400.0


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A JetStream stream. All discard *new*: a full stream is felt by its publisher, nothing is forgotten."""

    name: str
    subjects: tuple[str, ...]
    max_age_s: float
    description: str
    max_bytes: int = -1
    duplicate_window_s: float = 120.0


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A durable pull consumer with explicit acknowledgements, redelivered without end."""

    stream: str
    durable: str
    filter_subject: str
    description: str
    ack_wait_s: float = 30.0
    max_ack_pending: int = 1_000


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A JetStream KV bucket with a history of one."""

    name: str
    description: str
    ttl_s: float | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the event table: who publishes what, where, for whom."""

    subject: str
    schema: str
    type_name: str
    stream: str | None
    publisher: str
    consumers: str
    meaning: str
    is_batch: bool = True


USAGE: Final = Stream(
    name="USAGE",
    subjects=(f"{REQUEST_COMPLETED}.*",),
    max_age_s=7 * _DAY_S,
    description="Usage events, one per request",
)
SECURITY: Final = Stream(
    name="SECURITY",
    subjects=(AUTH_FAILED,),
    max_age_s=30 * _DAY_S,
    description="Refused authentications, added up",
)
ALERTS: Final = Stream(
    name="ALERTS",
    subjects=(f"{BUDGET_THRESHOLD}.*", ALERTS_COMMAND),
    max_age_s=30 * _DAY_S,
    description="Budget thresholds that were reached, and commands about alerts",
)
AUDIT_STREAM: Final = Stream(
    name="AUDIT",
    subjects=(f"{AUDIT}.*.*",),
    max_age_s=90 * _DAY_S,
    description="Changes of configuration",
)
RETENTION: Final = Stream(
    name="RETENTION",
    subjects=("gateway.retention.*",),
    max_age_s=30 * _DAY_S,
    description="Retention commands and their results",
)
DEADLETTER_STREAM: Final = Stream(
    name="DEADLETTER",
    subjects=(f"{DEADLETTER}.*",),
    max_age_s=30 * _DAY_S,
    description="Messages that could not be handled",
)
STREAMS: Final = (USAGE, SECURITY, ALERTS, AUDIT_STREAM, RETENTION, DEADLETTER_STREAM)

USAGE_WRITER: Final = Consumer(
    stream="USAGE",
    durable="usage-writer",
    filter_subject=f"{REQUEST_COMPLETED}.*",
    description="usage-writer stores usage events",
)
ALERT_WORKER: Final = Consumer(
    stream="ALERTS",
    durable="budget-alert",
    filter_subject=f"{BUDGET_THRESHOLD}.*",
    description="budget-alert stores each threshold once",
)
ALERT_COMMANDS: Final = Consumer(
    stream="ALERTS",
    durable="budget-alert-commands",
    filter_subject=ALERTS_COMMAND,
    description="budget-alert replays and tests deliveries",
)
RETENTION_WORKER: Final = Consumer(
    stream="RETENTION",
    durable="retention",
    filter_subject=RETENTION_COMMAND,
    description="retention runs commands",
    ack_wait_s=300.0,
)
CONSUMERS: Final = (USAGE_WRITER, ALERT_WORKER, ALERT_COMMANDS, RETENTION_WORKER)

KEYS_BUCKET: Final = Bucket(name="sluicegate-keys", description="Gateway keys by the SHA-256 of their text")
CATALOGUE_BUCKET: Final = Bucket(name="sluicegate-catalog", description="Configuration by <noun>.<id>")
BUCKETS: Final = (KEYS_BUCKET, CATALOGUE_BUCKET)

EVENTS: Final = (
    Event(
        subject=f"{REQUEST_COMPLETED}.<tenant>",
        schema="request.completed.v1",
        type_name="UsageRecorded",
        stream="USAGE",
        publisher="edge",
        consumers="usage-writer, anyone",
        meaning="A request ended: who used what, at what cost.",
    ),
    Event(
        subject=AUTH_FAILED,
        schema="auth.failed.v1",
        type_name="AuthFailed",
        stream="SECURITY",
        publisher="edge",
        consumers="anyone",
        meaning="Requests were refused for their key.",
    ),
    Event(
        subject=f"{BUDGET_THRESHOLD}.<tenant>",
        schema="budget.threshold.v1",
        type_name="BudgetThresholdReached",
        stream="ALERTS",
        publisher="edge, budget-alert",
        consumers="budget-alert, anyone",
        meaning="A budget's spend reached a threshold. Budgets that belong to no tenant use `_`.",
    ),
    Event(
        subject=ALERTS_COMMAND,
        schema="alerts.commanded.v1",
        type_name="AlertsCommanded",
        stream="ALERTS",
        publisher="admin",
        consumers="budget-alert",
        meaning="Deliver an alert once more, or test an endpoint.",
    ),
    Event(
        subject=f"{INVALIDATION_APPLIED}.<edge>",
        schema="invalidation.applied.v1",
        type_name="InvalidationApplied",
        stream=None,
        publisher="edge",
        consumers="admin",
        meaning="An edge process has applied configuration up to these sequences.",
        is_batch=False,
    ),
    Event(
        subject=f"{AUDIT}.<noun>.<verb>",
        schema="configuration.changed.v1",
        type_name="ConfigurationChanged",
        stream="AUDIT",
        publisher="admin",
        consumers="anyone",
        meaning="Configuration was changed: by whom, before and after.",
    ),
    Event(
        subject=RETENTION_COMMAND,
        schema="retention.requested.v1",
        type_name="RetentionRequested",
        stream="RETENTION",
        publisher="admin",
        consumers="retention",
        meaning="Make partitions now.",
    ),
    Event(
        subject=RETENTION_COMPLETED,
        schema="retention.completed.v1",
        type_name="RetentionCompleted",
        stream="RETENTION",
        publisher="retention",
        consumers="admin, anyone",
        meaning="Partitions were made.",
    ),
    Event(
        subject=f"{DEADLETTER}.<room>",
        schema="message.deadlettered.v1",
        type_name="DeadLettered",
        stream="DEADLETTER",
        publisher="workers",
        consumers="admin, anyone",
        meaning="A message could not be handled, and why.",
    ),
)
