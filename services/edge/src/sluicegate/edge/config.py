"""Settings of the edge: read once by the supervisor and by each worker."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.settings import KeyRingSettings, LogSettings, NatsSettings, Port, RedisSettings

_MIB = 1024 * 1024


class EdgeSettings(NatsSettings, RedisSettings, KeyRingSettings, LogSettings):
    """What an edge runs with."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_EDGE_")

    host: str = Field(default="0.0.0.0", description="Address of the data plane.")
    port: Port = Field(default=8080, description="Port of the data plane.")
    internal_host: str = Field(default="127.0.0.1", description="Address of the internal server.")
    internal_port: Port = Field(default=9080, description="Port of liveness, readiness and metrics.")
    workers: int = Field(default=1, ge=1, le=256, description="Worker processes; one per core is a good start.")
    state_dir: Path = Field(default=Path(".sluicegate/edge"), description="Folder of the journal.")

    max_header_bytes: int = Field(default=65_536, ge=1_024, description="Largest request head, in bytes.")
    max_headers: int = Field(default=128, ge=8, description="Most headers of a request.")
    max_body_bytes: int = Field(default=34 * _MIB, ge=1_024, description="Largest request body, in bytes.")
    max_buffered_bytes: int = Field(
        default=256 * _MIB, ge=1_024, description="Request bodies held at once by one worker, in bytes."
    )
    header_timeout_s: float = Field(default=10.0, gt=0, description="A request head must be whole within this time.")
    body_timeout_s: float = Field(
        default=30.0, gt=0, description="A request body must be whole within this time, and a second more per 32 KiB."
    )
    keep_alive_timeout_s: float = Field(default=75.0, gt=0, description="An idle client connection is closed after.")
    write_timeout_s: float = Field(default=60.0, gt=0, description="A client that takes no bytes is given up after.")

    charge_cancelled_prompt: bool = Field(
        default=True,
        description="Charge the prompt, estimated, when a client leaves after the request went to a provider and "
        "before its answer began.",
    )

    limits_when_store_away: Literal["local-share", "closed", "open"] = Field(
        default="local-share",
        description="Without Valkey, once leases have ended: serve each worker's share of what was left "
        "(`local-share`), refuse with 503 (`closed`), or serve all (`open`).",
    )
    limits_expected_workers: int = Field(
        default=1,
        ge=1,
        description="Workers of all edges together, at least this one's: between so many `local-share` divides a limit "
        "of which Valkey has never told anything.",
    )
    cached_tokens_weight_percent: int = Field(
        default=100, ge=0, le=100, description="What a cached input token takes from limits of tokens a minute."
    )
    unpriced_under_budget: Literal["refuse", "serve"] = Field(
        default="refuse",
        description="A model without a price, called under a hard budget: `refuse` it, or `serve` it for nothing.",
    )

    mirror_wait_s: float = Field(
        default=10.0, ge=0, description="A starting worker takes no clients until its mirrors are read, or this long."
    )
    drain_delay_s: float = Field(
        default=0.0, ge=0, description="Between readiness off and the end of new requests, at a stop."
    )
    shutdown_timeout_s: float = Field(default=30.0, ge=0, description="Open requests may run on this long at a stop.")

    worker_start_timeout_s: float = Field(
        default=60.0, gt=0, description="A worker that has not answered its supervisor by then is replaced."
    )
    worker_hang_timeout_s: float = Field(
        default=5.0,
        gt=0,
        description="A worker that stops answering its supervisor for this long is killed and replaced.",
    )

    journal_cap_bytes: int = Field(default=1024 * _MIB, ge=_MIB, description="Most disk the journal takes, in bytes.")
    journal_when_full: Literal["refuse", "serve"] = Field(
        default="refuse", description="With a full journal: `refuse` requests (503), or `serve` them unrecorded."
    )


class WorkerSettings(EdgeSettings):
    """What a worker is told by its supervisor besides; the defaults are those of a worker without one."""

    worker_index: int = Field(default=0, ge=0, description="Set by the supervisor: the worker's number.")
    control_socket: Path | None = Field(
        default=None, description="Set by the supervisor: the Unix socket on which the worker answers it."
    )
    supervisor_pid: int | None = Field(
        default=None, description="Set by the supervisor: the worker ends when this process, its parent, does."
    )
