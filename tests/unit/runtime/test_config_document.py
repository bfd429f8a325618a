"""The settings page: found classes, shared variables once, secrets never, no row without words."""

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.config_document import render, room_settings
from sluicegate.runtime.settings import NatsSettings


class PumpSettings(NatsSettings):
    """What a pump runs with."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_PUMP_")

    speed: int | None = Field(default=None, description="How fast.")
    token: SecretStr = Field(default=SecretStr("hunter2"), description="A secret.")


class MuteSettings(NatsSettings):
    """Says nothing about its field."""

    speed: int = 1


def test_page_holds_shared_and_own_variables() -> None:
    page = render({"pump": PumpSettings, "valve": NatsSettings})
    assert page.count("| `SLUICEGATE_NATS_URL` | secret | **required** |") == 1
    assert "| pump, valve |" in page
    assert "| `SLUICEGATE_PUMP_SPEED` | integer | none | How fast. |" in page


def test_page_does_not_show_a_secret_default() -> None:
    assert "hunter2" not in render({"pump": PumpSettings})


def test_page_is_refused_when_a_setting_is_not_described() -> None:
    with pytest.raises(ValueError, match="SPEED has no description"):
        render({"mute": MuteSettings})


def test_settings_of_the_services_are_found() -> None:
    assert {"admin", "edge"} <= room_settings().keys()
