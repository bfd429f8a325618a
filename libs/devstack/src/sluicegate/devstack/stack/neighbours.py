"""The three servers under the services: embedded, or somebody else's by environment variable."""

import os
import socket
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sluicegate.devstack.servers import EmbeddedServer, NatsServer, PostgresServer, ValkeyServer
from sluicegate.devstack.stack.layout import Home, Secrets

NeighbourName = Literal["postgres", "nats", "valkey"]

_EXTERNAL: Mapping[NeighbourName, tuple[str, int]] = {
    "postgres": ("SLUICEGATE_POSTGRES_DSN", 5432),
    "nats": ("SLUICEGATE_NATS_URL", 4222),
    "valkey": ("SLUICEGATE_REDIS_URL", 6379),
}
_DATABASE = "sluicegate"
# Not the usual ports: those belong to servers of the machine's own.
_PREFERRED_PORT: Mapping[NeighbourName, int] = {"postgres": 15432, "nats": 14222, "valkey": 16379}


class UnreachableError(RuntimeError):
    """An external server does not answer."""


@dataclass(frozen=True)
class External:
    """A server that was given by an environment variable: used, never started, stopped or wiped."""

    name: NeighbourName
    url: str

    def check(self) -> None:
        """Raise UnreachableError if nobody accepts a connection. Shows no password."""
        variable, default_port = _EXTERNAL[self.name]
        parts = urllib.parse.urlsplit(self.url.split(",", maxsplit=1)[0])
        host, port = parts.hostname or "localhost", parts.port or default_port
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            raise UnreachableError(f"{variable}: {host}:{port} does not answer ({error})") from error

    @property
    def place(self) -> str:
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or _EXTERNAL[self.name][1]}, external"


def external_neighbours() -> dict[NeighbourName, External]:
    """The servers that the environment names."""
    return {
        name: External(name, os.environ[variable])
        for name, (variable, _) in _EXTERNAL.items()
        if os.environ.get(variable)
    }


def embedded_neighbours(
    home: Home, secrets: Secrets, external: Mapping[NeighbourName, External]
) -> list[EmbeddedServer]:
    """The servers to start, the slowest last: PostgreSQL makes its data folder while the others start."""
    kinds: dict[NeighbourName, type[EmbeddedServer]] = {
        "nats": NatsServer,
        "valkey": ValkeyServer,
        "postgres": PostgresServer,
    }
    return [
        kind(
            home.data / name,
            port=_PREFERRED_PORT[name],
            password=secrets.get_or_make(f"{name}_password"),
            log_path=home.log_of(name),
        )
        for name, kind in kinds.items()
        if name not in external
    ]


def service_url(server: EmbeddedServer) -> str:
    """The address the services use; for PostgreSQL it names their database, which `migrate` makes."""
    return server.dsn(_DATABASE) if isinstance(server, PostgresServer) else server.url
