"""Valkey as the ledger wants it: append-only file, and no eviction (an evicted meter would read as nothing spent)."""

import socket
from signal import SIGTERM

from sluicegate.devstack.servers import binaries
from sluicegate.devstack.servers.embedded import EmbeddedServer, write_secret
from sluicegate.devstack.servers.ports import LOOPBACK
from sluicegate.devstack.servers.process import ChildProcess, spawn


class ValkeyServer(EmbeddedServer):
    """One server; at most the last second of writes is lost in a crash of the machine, none in a restart."""

    name = "valkey"
    stop_signal = SIGTERM

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def spawn(self) -> ChildProcess:
        config = self.directory / "valkey.conf"
        write_secret(config, self._config())
        return spawn(
            [binaries.valkey_server(), "-"],
            stdin_path=config,  # given as a path, brackets in it would be a pattern
            log_path=self.log_path,
            cwd=self.directory,
            death_signal=SIGTERM,
        )

    def answers(self) -> bool:
        """AUTH with our password, then PING; `LOADING` is not ready."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                stream = connection.makefile("rwb")
                stream.write(f"AUTH {self.password}\r\nPING\r\n".encode())
                stream.flush()
                return stream.readline() == b"+OK\r\n" and stream.readline() == b"+PONG\r\n"
        except OSError:
            return False

    def flush(self) -> None:
        """FLUSHALL: forget everything, as a lost server would."""
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as connection:
            stream = connection.makefile("rwb")
            stream.write(f"AUTH {self.password}\r\nFLUSHALL\r\n".encode())
            stream.flush()
            if (stream.readline(), stream.readline()) != (b"+OK\r\n", b"+OK\r\n"):
                raise RuntimeError("valkey refused FLUSHALL")

    def _config(self) -> str:
        return f"""\
bind {LOOPBACK}
port {self.port}
requirepass {self.password}
daemonize no
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""
