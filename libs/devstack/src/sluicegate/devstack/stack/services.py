"""The services of the stack, as data: one row each. Adding one is adding a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Need = Literal["nats", "postgres", "redis", "key_ring", "admin_token"]

VARIABLE_OF: Mapping[Need, str] = {
    "nats": "SLUICEGATE_NATS_URL",
    "postgres": "SLUICEGATE_POSTGRES_DSN",
    "redis": "SLUICEGATE_REDIS_URL",
    "key_ring": "SLUICEGATE_KEY_RING",
    "admin_token": "SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN",
}


@dataclass(frozen=True)
class ServicePort:
    """A port under the name that `command` and `ready` use, and the setting it goes into."""

    preferred: int
    variable: str | None = None


@dataclass(frozen=True)
class Service:
    """How one service is started and when it is ready.

    `command` are arguments of `sluicegate`; `{main}` and `{internal}` stand for ports. In `env` also `{state}` (a
    folder of its own) and `{edge_workers}`; `defaults` yield to what the user has set. It gets only the addresses
    and secrets it `needs`. Children are its workers: they are listed under the service's name, and the process
    itself under `<name>-supervisor`.
    """

    name: str
    command: tuple[str, ...]
    ports: Mapping[str, ServicePort]
    ready: str
    needs: frozenset[Need] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    has_workers: bool = False
    stops_first: bool = False


FAKE_PROVIDER = Service(
    name="fake-provider",
    command=("fake-provider", "--host", "127.0.0.1", "--port", "{main}"),
    ports={"main": ServicePort(8089)},
    ready="http://127.0.0.1:{main}/v1/models",
)

SERVICES: tuple[Service, ...] = (
    Service(
        name="admin",
        command=("admin",),
        ports={
            "main": ServicePort(8081, "SLUICEGATE_ADMIN_PORT"),
            "internal": ServicePort(9081, "SLUICEGATE_ADMIN_INTERNAL_PORT"),
        },
        ready="http://127.0.0.1:{internal}/readyz",
        needs=frozenset({"nats", "postgres", "key_ring", "admin_token"}),
        defaults={"SLUICEGATE_ADMIN_HOST": "127.0.0.1", "SLUICEGATE_ADMIN_INTERNAL_HOST": "127.0.0.1"},
    ),
    Service(
        name="edge",
        command=("edge",),
        ports={
            "main": ServicePort(8080, "SLUICEGATE_EDGE_PORT"),
            "internal": ServicePort(9080, "SLUICEGATE_EDGE_INTERNAL_PORT"),
        },
        ready="http://127.0.0.1:{internal}/readyz",
        needs=frozenset({"nats", "redis", "key_ring"}),
        env={"SLUICEGATE_EDGE_WORKERS": "{edge_workers}", "SLUICEGATE_EDGE_STATE_DIR": "{state}"},
        defaults={
            "SLUICEGATE_EDGE_HOST": "127.0.0.1",
            "SLUICEGATE_EDGE_INTERNAL_HOST": "127.0.0.1",
            "SLUICEGATE_EDGE_SHUTDOWN_TIMEOUT_S": "5",
        },
        has_workers=True,
        stops_first=True,
    ),
    Service(
        name="usage-writer",
        command=("usage-writer",),
        ports={"internal": ServicePort(9082, "SLUICEGATE_USAGE_WRITER_INTERNAL_PORT")},
        ready="http://127.0.0.1:{internal}/readyz",
        needs=frozenset({"nats", "postgres"}),
        defaults={"SLUICEGATE_USAGE_WRITER_INTERNAL_HOST": "127.0.0.1"},
    ),
    Service(
        name="budget-alert",
        command=("budget-alert",),
        ports={"internal": ServicePort(9083, "SLUICEGATE_BUDGET_ALERT_INTERNAL_PORT")},
        ready="http://127.0.0.1:{internal}/readyz",
        needs=frozenset({"nats", "postgres", "redis", "key_ring"}),
        defaults={"SLUICEGATE_BUDGET_ALERT_INTERNAL_HOST": "127.0.0.1"},
    ),
    Service(
        name="retention",
        command=("retention",),
        ports={"internal": ServicePort(9084, "SLUICEGATE_RETENTION_INTERNAL_PORT")},
        ready="http://127.0.0.1:{internal}/readyz",
        needs=frozenset({"nats", "postgres"}),
        defaults={"SLUICEGATE_RETENTION_INTERNAL_HOST": "127.0.0.1"},
    ),
)
