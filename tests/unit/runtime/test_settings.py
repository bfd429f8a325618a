"""Settings: every bad variable is named at once, secrets never are shown."""

import pytest
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from sluicegate.runtime.key_ring import KeyRing
from sluicegate.runtime.settings import (
    KeyRingSettings,
    LogSettings,
    NatsSettings,
    Port,
    PostgresSettings,
    load,
    problems,
    variable_name,
)


class PumpSettings(NatsSettings, PostgresSettings, LogSettings):
    """Settings of a room that does not exist."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_PUMP_")

    port: Port = Field(default=9090, description="A port.")
    token: SecretStr = Field(description="A secret.")


GOOD = {
    "SLUICEGATE_NATS_URL": "nats://user:hunter2@127.0.0.1:4222",
    "SLUICEGATE_POSTGRES_DSN": "postgresql://user:hunter2@127.0.0.1/sluicegate",
    "SLUICEGATE_PUMP_TOKEN": "hunter2",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (
        "SLUICEGATE_LOG_LEVEL",
        "SLUICEGATE_LOG_FORMAT",
        "SLUICEGATE_NATS_REPLICAS",
        "SLUICEGATE_KEY_RING",
    ):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in GOOD.items():
        monkeypatch.setenv(variable, value)


def test_settings_come_from_shared_and_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_PUMP_PORT", "1234")
    monkeypatch.setenv("SLUICEGATE_LOG_LEVEL", "DEBUG")
    settings = load(PumpSettings)
    assert settings.port == 1234
    assert settings.log_level == "debug"
    assert settings.nats_url.get_secret_value() == GOOD["SLUICEGATE_NATS_URL"]


def test_settings_take_defaults_when_variables_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_PUMP_PORT", "")
    assert load(PumpSettings).port == 9090


def test_settings_can_be_made_by_field_names() -> None:
    """As tests do, without an environment."""
    made = PumpSettings(nats_url="nats://other", postgres_dsn="postgresql://other", token="t", port=1)  # type: ignore[arg-type]
    assert (made.nats_url.get_secret_value(), made.port) == ("nats://other", 1)


def test_settings_never_show_secrets() -> None:
    assert "hunter2" not in repr(load(PumpSettings))
    assert "hunter2" not in str(load(PumpSettings).model_dump())


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load(PumpSettings).port = 1


def test_start_stops_with_status_2_and_names_every_bad_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICEGATE_PUMP_PORT", "70000")
    monkeypatch.setenv("SLUICEGATE_LOG_FORMAT", "xml")
    monkeypatch.setenv("SLUICEGATE_NATS_URL", "http://user:hunter2@host")
    monkeypatch.delenv("SLUICEGATE_PUMP_TOKEN")
    with pytest.raises(SystemExit) as stopped:
        load(PumpSettings)
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    for variable in ("SLUICEGATE_PUMP_PORT", "SLUICEGATE_LOG_FORMAT", "SLUICEGATE_NATS_URL", "SLUICEGATE_PUMP_TOKEN"):
        assert variable in shown
    assert "hunter2" not in shown
    assert "70000" in shown
    assert "SLUICEGATE_PUMP_TOKEN: is not set" in shown


def test_problem_is_named_by_its_variable_when_settings_are_made_by_field_names() -> None:
    with pytest.raises(ValidationError) as raised:
        PumpSettings.model_validate(GOOD | {"token": "t", "port": -1})
    assert [line.partition(":")[0] for line in problems(PumpSettings, raised.value)] == ["SLUICEGATE_PUMP_PORT"]


@pytest.mark.parametrize("url", ["localhost:4222", "redis://host", "natss://host", ""])
def test_nats_url_is_refused_when_it_has_another_scheme(url: str) -> None:
    with pytest.raises(ValidationError):
        NatsSettings(nats_url=url)  # type: ignore[arg-type]


def test_key_ring_is_checked_at_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLUICEGATE_KEY_RING", "k1:hunter2")
    with pytest.raises(SystemExit):
        load(KeyRingSettings)
    assert "hunter2" not in capsys.readouterr().err
    monkeypatch.setenv("SLUICEGATE_KEY_RING", KeyRing.generate())
    assert load(KeyRingSettings).key_ring.get_secret_value().startswith("k1:")


def test_variable_name_is_the_alias_or_prefix_and_field() -> None:
    assert variable_name(PumpSettings, "nats_url") == "SLUICEGATE_NATS_URL"
    assert variable_name(PumpSettings, "port") == "SLUICEGATE_PUMP_PORT"
