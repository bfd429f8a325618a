"""The settings of retention."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.settings import LogSettings, NatsSettings, Port, PostgresSettings


class RetentionSettings(NatsSettings, PostgresSettings, LogSettings):
    """What retention reads from the environment."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_RETENTION_")

    internal_host: str = Field(default="127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    internal_port: Port = Field(default=9084, description="Port of /livez, /readyz and /metrics.")
    days_ahead: int = Field(default=7, ge=1, le=60, description="Days from today on that have partitions.")
    run_every_s: float = Field(default=3_600.0, ge=1.0, le=86_400.0, description="Time between two runs, in s.")
