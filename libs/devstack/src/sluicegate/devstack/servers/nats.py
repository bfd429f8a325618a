"""NATS with JetStream. The password goes into a file, because every local user can read a command line."""

import json
import socket
from pathlib import Path
from signal import SIGTERM

from sluicegate.devstack.servers import binaries
from sluicegate.devstack.servers.embedded import EmbeddedServer, write_secret
from sluicegate.devstack.servers.ports import LOOPBACK
from sluicegate.devstack.servers.process import ChildProcess, spawn


class NatsServer(EmbeddedServer):
    """One server; its store survives a restart and `kill -9` (it is written to the page cache at once)."""

    name = "nats"
    stop_signal = SIGTERM

    @property
    def url(self) -> str:
        return f"nats://{self.user}:{self.password}@{LOOPBACK}:{self.port}"

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def spawn(self) -> ChildProcess:
        config = self.directory / "server.conf"
        write_secret(config, self._config())
        return spawn([binaries.nats_server(), "-c", config], log_path=self.log_path, death_signal=SIGTERM)

    def answers(self) -> bool:
        """One round trip of the protocol: INFO, CONNECT with our password, PING, PONG."""
        login = {"user": self.user, "pass": self.password, "verbose": False, "pedantic": False, "lang": "devstack"}
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                stream = connection.makefile("rwb")
                if not stream.readline().startswith(b"INFO "):
                    return False
                stream.write(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
                stream.flush()
                return stream.readline() == b"PONG\r\n"
        except OSError:
            return False

    def _config(self) -> str:
        store: Path = self.directory.resolve()
        return f"""\
server_name: sluicegate-devstack
listen: "{LOOPBACK}:{self.port}"
authorization: {{ user: {_quoted(self.user)}, password: {_quoted(self.password)} }}
jetstream: {{ store_dir: {_quoted(str(store))}, max_file_store: 64GB }}
"""


def _quoted(text: str) -> str:
    """As JSON has it, but with letters of any script as they are: the configuration knows no escapes for them."""
    return json.dumps(text, ensure_ascii=False)
