"""The settings of budget-alert."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.settings import (
    KeyRingSettings,
    LogSettings,
    NatsSettings,
    Port,
    PostgresSettings,
    RedisSettings,
)


class AlertSettings(NatsSettings, PostgresSettings, RedisSettings, KeyRingSettings, LogSettings):
    """What budget-alert reads from the environment."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_BUDGET_ALERT_")

    internal_host: str = Field(default="127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    internal_port: Port = Field(default=9083, description="Port of /livez, /readyz and /metrics.")
    deliveries_at_once: int = Field(default=200, ge=1, le=2_000, description="Webhooks that one process sends at once.")
    deliveries_per_endpoint: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Webhooks sent at once to one endpoint, so that a slow one holds up nobody.",
    )
    audit_every_s: float = Field(
        default=30.0, ge=0.05, le=300.0, description="Time between two audits of the budget meters, in s."
    )
    audit_wait_s: float = Field(
        default=10.0,
        ge=0.0,
        le=30.0,
        description="Time between reading PostgreSQL and comparing it with a meter, in s: live edges report meanwhile.",
    )
