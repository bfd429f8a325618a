"""Typed settings, read from the environment once, at start. Nothing else reads the environment (OTEL_* apart).

A room derives one class from the mixins it needs and sets its own prefix:

    class WriterSettings(NatsSettings, PostgresSettings, LogSettings):
        model_config = SettingsConfigDict(env_prefix="SLUICEGATE_USAGE_WRITER_")
        internal_port: int = Field(default=9082, description="Port of the internal server.")

Variables that several rooms share carry no room in their name; they are declared here, by alias.
"""

import sys
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "SLUICEGATE_"

Port = Annotated[int, Field(ge=0, le=65_535)]


def _with_scheme(*schemes: str) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        if not url.get_secret_value().startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return url

    return AfterValidator(check)


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _is_key_ring(text: SecretStr) -> SecretStr:
    # Only rooms with a key ring pay for importing cryptography.
    from sluicegate.runtime.key_ring import KeyRing  # noqa: PLC0415

    KeyRing.parse(text.get_secret_value())
    return text


NatsUrl = Annotated[SecretStr, _with_scheme("nats", "tls")]
PostgresDsn = Annotated[SecretStr, _with_scheme("postgresql", "postgres")]
RedisUrl = Annotated[SecretStr, _with_scheme("redis", "rediss")]
KeyRingText = Annotated[SecretStr, AfterValidator(_is_key_ring)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower_case)]
LogFormat = Annotated[Literal["json", "console"], BeforeValidator(_lower_case)]


class RoomSettings(BaseSettings):
    """The root of every room's settings. Frozen: what a process runs with is what it was started with."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
    )


class LogSettings(RoomSettings):
    """How a process logs."""

    log_level: LogLevel = Field(
        default="info", validation_alias="SLUICEGATE_LOG_LEVEL", description="Least severe level that is logged."
    )
    log_format: LogFormat = Field(
        default="json",
        validation_alias="SLUICEGATE_LOG_FORMAT",
        description="`json`, one object per line, or `console`, for people.",
    )


class NatsSettings(RoomSettings):
    """Where the bus is."""

    nats_url: NatsUrl = Field(
        validation_alias="SLUICEGATE_NATS_URL", description="NATS with JetStream, `nats://user:password@host:port`."
    )
    nats_replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        validation_alias="SLUICEGATE_NATS_REPLICAS",
        description="Copies that JetStream keeps of each stream and bucket.",
    )


class PostgresSettings(RoomSettings):
    """Where the tables are."""

    postgres_dsn: PostgresDsn = Field(
        validation_alias="SLUICEGATE_POSTGRES_DSN",
        description="PostgreSQL, `postgresql://user:password@host:port/name`.",
    )


class RedisSettings(RoomSettings):
    """Where the shared meters are."""

    redis_url: RedisUrl = Field(
        validation_alias="SLUICEGATE_REDIS_URL", description="Valkey or Redis, `redis://:password@host:port/0`."
    )


class KeyRingSettings(RoomSettings):
    """What provider credentials are sealed with."""

    key_ring: KeyRingText = Field(
        validation_alias="SLUICEGATE_KEY_RING",
        description="`id:<base64 of 32 bytes>[,id:…]`; the first seals, all open. Rotate by adding one in front.",
    )


S = TypeVar("S", bound=RoomSettings)


def variable_name(settings_type: type[RoomSettings], field_name: str) -> str:
    """Return the environment variable that sets a field."""
    alias = settings_type.model_fields[field_name].validation_alias
    if isinstance(alias, str):
        return alias
    return f"{settings_type.model_config.get('env_prefix', '')}{field_name}".upper()


def is_secret(field: FieldInfo) -> bool:
    """Tell whether a field's value must never be shown."""
    return "Secret" in str(field.annotation)


def problems(settings_type: type[RoomSettings], error: ValidationError) -> list[str]:
    """Return one line per bad variable. The values of secrets are left out."""
    fields = settings_type.model_fields
    names = {variable_name(settings_type, name): name for name in fields}
    lines = []
    for detail in error.errors(include_url=False):
        place = str(detail["loc"][0]) if detail["loc"] else ""
        field_name = names.get(place, place)
        if field_name not in fields:
            lines.append(detail["msg"])
            continue
        line = f"{variable_name(settings_type, field_name)}: {detail['msg'].removeprefix('Value error, ')}"
        if detail["type"] == "missing":
            line = f"{variable_name(settings_type, field_name)}: is not set"
        elif not is_secret(fields[field_name]):
            line += f" (is {detail['input']!r})"
        lines.append(line)
    return lines


def load(settings_type: type[S]) -> S:
    """Read the environment; on bad or missing variables name them all on stderr and exit with status 2."""
    try:
        return settings_type()
    except ValidationError as error:
        lines = problems(settings_type, error)
    sys.stderr.write("Cannot start, the environment is not right:\n" + "".join(f"  {line}\n" for line in lines))
    raise SystemExit(2)
