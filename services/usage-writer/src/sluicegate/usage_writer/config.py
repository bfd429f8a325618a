"""The settings of usage-writer."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.settings import LogSettings, NatsSettings, Port, PostgresSettings


class WriterSettings(NatsSettings, PostgresSettings, LogSettings):
    """What usage-writer reads from the environment."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_USAGE_WRITER_")

    internal_host: str = Field(default="127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    internal_port: Port = Field(default=9082, description="Port of /livez, /readyz and /metrics.")
    usage_retention_days: int = Field(
        default=400,
        ge=1,
        le=36_500,
        validation_alias="SLUICEGATE_USAGE_RETENTION_DAYS",
        description="Days that usage records are kept; an older one that arrives is dead-lettered.",
    )
    batch_messages: int = Field(default=50, ge=1, le=500, description="Messages taken from the stream at once.")
    fill_ms: int = Field(default=100, ge=5, le=5_000, description="Longest wait for a batch to fill, in ms.")
    transaction_rows: int = Field(default=5_000, ge=1, le=50_000, description="Most rows of one transaction.")
    batches_in_flight: int = Field(
        default=2, ge=1, le=8, description="Batches worked on at once: one is decoded while another is stored."
    )
