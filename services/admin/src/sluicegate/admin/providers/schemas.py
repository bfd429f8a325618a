"""Bodies of the providers' endpoints. The credential goes in and never comes out."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, Name, Recorded, RecordId, Request, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery
from sluicegate.admin.urls import base_url
from sluicegate.contracts.catalogue import ProviderType

_HOUR_MS: Final = 3_600_000

BaseUrl = Annotated[
    str,
    Field(
        min_length=1,
        max_length=500,
        description="What stands before `/chat/completions`.",
        examples=["https://api.openai.com/v1"],
    ),
    AfterValidator(base_url),
]
ApiKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        pattern=r"^[\x21-\x7e]+$",
        description="The provider's key. Stored encrypted, never shown again.",
        examples=["sk-…"],
        json_schema_extra={"writeOnly": True},
    ),
]
ConnectTimeout = Annotated[int, Field(ge=1, le=60_000, description="To connect, TLS included.")]
FirstByteTimeout = Annotated[int, Field(ge=1, le=_HOUR_MS, description="From the request to the answer's first byte.")]
IdleTimeout = Annotated[int, Field(ge=1, le=_HOUR_MS, description="Between two reads of an answer.")]
TotalTimeout = Annotated[int, Field(ge=1, le=24 * _HOUR_MS, description="For one attempt as a whole.")]
MaxConnections = Annotated[int, Field(ge=1, le=65_536, description="Open connections per edge process.")]
StreamOptions = Annotated[bool, Field(description="It understands `stream_options.include_usage`.")]


class NewProvider(Request):
    """A provider to be made."""

    name: Name = Field(examples=["OpenAI"])
    type: ProviderType = "openai_compatible"
    base_url: BaseUrl
    api_key: ApiKey | None = None
    tenant: RecordId | None = Field(default=None, description="Only routes of this tenant may lead to it. Null: all.")
    supports_stream_options: StreamOptions = True
    connect_timeout_ms: ConnectTimeout = 5_000
    first_byte_timeout_ms: FirstByteTimeout = 120_000
    idle_timeout_ms: IdleTimeout = 60_000
    total_timeout_ms: TotalTimeout = 900_000
    max_connections: MaxConnections = 1_024
    enabled: Enabled = True
    limits: WantedLimits = NO_LIMITS


class ProviderPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    base_url: BaseUrl = Field(default_factory=unchanged)
    api_key: ApiKey | None = Field(default_factory=unchanged, description="A new key; null takes it away.")
    supports_stream_options: StreamOptions = Field(default_factory=unchanged)
    connect_timeout_ms: ConnectTimeout = Field(default_factory=unchanged)
    first_byte_timeout_ms: FirstByteTimeout = Field(default_factory=unchanged)
    idle_timeout_ms: IdleTimeout = Field(default_factory=unchanged)
    total_timeout_ms: TotalTimeout = Field(default_factory=unchanged)
    max_connections: MaxConnections = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)


class Provider(Recorded):
    """An upstream server."""

    id: str = Field(examples=["prv_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    name: str = Field(examples=["OpenAI"])
    type: ProviderType
    base_url: str = Field(examples=["https://api.openai.com/v1"])
    tenant: str | None
    has_credential: bool
    credential_hint: str | None = Field(description="The last characters of the key.", examples=["x4Qz"])
    supports_stream_options: bool
    connect_timeout_ms: int
    first_byte_timeout_ms: int
    idle_timeout_ms: int
    total_timeout_ms: int
    max_connections: int
    limits: Limits


class ProviderChanged(Propagation, Provider):
    """A provider after a change."""


class ProviderPage(Answer):
    """A page of providers, oldest first."""

    data: list[Provider]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class ProviderQuery(ListQuery):
    """Which providers."""

    id_prefix = "prv"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
