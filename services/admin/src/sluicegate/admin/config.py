"""Settings of the admin service."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.key_ring import KeyRing
from sluicegate.runtime.settings import KeyRingSettings, LogSettings, NatsSettings, Port, PostgresSettings

MIN_TOKEN_LENGTH: Final = 32


def _long_enough(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < MIN_TOKEN_LENGTH:
        raise ValueError(f"must have at least {MIN_TOKEN_LENGTH} characters")
    return token


def _parses(text: SecretStr) -> SecretStr:
    KeyRing.parse(text.get_secret_value())
    return text


class AdminSettings(NatsSettings, PostgresSettings, KeyRingSettings, LogSettings):
    """What `sluicegate admin` reads from the environment."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_ADMIN_")

    host: str = Field(default="127.0.0.1", description="Address of the admin API.")
    port: Port = Field(default=8081, description="Port of the admin API.")
    internal_host: str = Field(default="127.0.0.1", description="Address of the internal server.")
    internal_port: Port = Field(default=9081, description="Port of the internal server: /livez, /readyz, /metrics.")
    bootstrap_token: Annotated[SecretStr, AfterValidator(_long_enough)] = Field(
        description="Token that may do everything in the admin API; at least 32 characters."
    )
    key_ring: Annotated[SecretStr, AfterValidator(_parses)] = Field(
        validation_alias="SLUICEGATE_KEY_RING",
        description="`id:<base64 of 32 bytes>[,id:…]`; the first seals, all open. Rotate by adding one in front.",
    )
