"""Settings: what keeps the service from starting."""

import pytest

from sluicegate.admin.config import AdminSettings
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.runtime.settings import load

GOOD = {
    "SLUICEGATE_NATS_URL": "nats://user:nats-password@localhost:4222",
    "SLUICEGATE_POSTGRES_DSN": "postgresql://user:pg-password@localhost/db",
    "SLUICEGATE_KEY_RING": KeyRing.generate(),
    "SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN": "x" * 32,
}


def set_environment(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in (GOOD | changes).items():
        monkeypatch.setenv(name, value)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, SLUICEGATE_ADMIN_PORT="18081")
    settings = load(AdminSettings)
    assert (settings.port, settings.internal_port) == (18081, 9081)
    assert settings.bootstrap_token.get_secret_value() == "x" * 32


def test_settings_do_not_show_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch)
    shown = repr(load(AdminSettings))
    assert not [secret for secret in ("password", "x" * 32, GOOD["SLUICEGATE_KEY_RING"]) if secret in shown]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN", "x" * 31),
        ("SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN", ""),
        ("SLUICEGATE_KEY_RING", "k1:c2hvcnQ="),
        ("SLUICEGATE_NATS_URL", "http://localhost"),
    ],
)
def test_start_is_refused_when_a_variable_is_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    set_environment(monkeypatch, **{name: value})
    with pytest.raises(SystemExit) as stopped:
        load(AdminSettings)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert name in message
    assert not value or value not in message
