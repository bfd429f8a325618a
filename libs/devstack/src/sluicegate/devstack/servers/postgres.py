"""PostgreSQL 18 by its binaries: made with a generated password, over TCP on loopback only.

Root may not run PostgreSQL. Tried in this order: as `nobody`, who then owns the data; or in a user namespace that maps
root to an ordinary id (the data stays root's), for programs or data below a folder that others may not enter.

Speed: `fsync` and `full_page_writes` can be off for tests, which keeps every commit through `kill -9` of the server
but not through a power cut. `synchronous_commit` stays on always: a commit that was answered must survive `kill -9`.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT

from sluicegate.devstack.servers import binaries
from sluicegate.devstack.servers.embedded import EmbeddedServer, ServerError, write_secret
from sluicegate.devstack.servers.ports import LOOPBACK
from sluicegate.devstack.servers.process import ChildProcess, Identity, spawn
from sluicegate.devstack.servers.sql import SqlError, run_sql
from sluicegate.devstack.servers.statement_log import LINE_PREFIX, StatementLog, switch_statement_log

_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": LINE_PREFIX,
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
_FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "10min"}
_DATABASE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class PostgresServer(EmbeddedServer):
    """One cluster. `directory` holds `data/` (owned by whoever the server runs as)."""

    name = "postgres"
    stop_signal = SIGINT  # "fast": SIGTERM would wait for all clients, for ever

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        password: str | None = None,
        log_path: Path | None = None,
        is_durable: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port=port, password=password, log_path=log_path)
        self._settings = _SETTINGS | ({} if is_durable else _FAST_SETTINGS) | dict(settings or {})
        self._data = directory / "data"
        self._binaries = binaries.postgres_folder()
        self._identity: Identity | None = None
        self._wrapper: list[str] = []

    @property
    def url(self) -> str:
        return self.dsn()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{self.user}:{self.password}@{LOOPBACK}:{self.port}/{database}?sslmode=disable"

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._data.exists():
            self._leave_root(self._data)
            return
        # Made elsewhere and moved: a start that is killed half-way leaves no half cluster.
        scratch = self.directory / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        self._leave_root(scratch)
        self._initialise(scratch)
        scratch.rename(self._data)

    def spawn(self) -> ChildProcess:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return spawn(
            [*self._wrapper, self._binaries / "postgres", "-D", self._data.resolve(), "-p", str(self.port), *options],
            log_path=self.log_path,
            death_signal=SIGINT,
            identity=self._identity,
            cwd=Path("/"),
        )

    def answers(self) -> bool:
        """The postmaster says `ready` in its own pid file, and our password is taken."""
        try:
            state = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(state) < 8 or state[0] != str(self.pid) or state[7].strip() != "ready":
            return False
        try:
            return self.execute("select 1") == "1"
        except SqlError:
            return False

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run SQL with psql and return what it prints, unaligned."""
        return run_sql(self.dsn(database), statement)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Make a database and return its DSN."""
        _check_name(name)
        suffix = f" template {template} strategy file_copy" if template else ""
        self.execute(f"create database {name}{suffix}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected."""
        _check_name(name)
        self.execute(f"drop database if exists {name} with (force)")

    def log_statements(self, *, enabled: bool) -> StatementLog:
        """Switch `log_statement=all` on or off, for sessions open already too; counts start at this point."""
        return switch_statement_log(self.url, self.log_path, enabled=enabled)

    def _initialise(self, folder: Path) -> None:
        password_file = self.directory / "password"
        write_secret(password_file, self.password)
        if self._identity:
            os.chown(password_file, self._identity.uid, self._identity.gid)
        try:
            self._run_as_server(
                [
                    *(self._binaries / "initdb", "-D", folder.resolve(), "-U", self.user, "--no-sync"),
                    *("--locale=C", "-E", "UTF8", "--auth=scram-sha-256", f"--pwfile={password_file.resolve()}"),
                ]
            )
        except subprocess.CalledProcessError as error:
            raise ServerError(f"initdb failed:\n{error.stdout}") from error
        finally:
            password_file.unlink()

    def _leave_root(self, folder: Path) -> None:
        """Choose who runs the server, and give the folder to that user. Nothing to do for anybody but root."""
        if os.geteuid() != 0:
            return
        nobody = _nobody()
        if nobody is not None and self._can_run_as(nobody, folder):
            self._identity, self._wrapper, owner = nobody, [], nobody
        else:
            self._identity, self._wrapper, owner = None, _as_ordinary_id(), Identity(0, 0)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.uid, owner.gid, follow_symlinks=False)

    def _can_run_as(self, identity: Identity, folder: Path) -> bool:
        """Whether that user reaches both the program and the folder."""
        os.chown(folder, identity.uid, identity.gid)
        check = 'test -x "$1" && cd "$2" && test -w . && exec "$1" --version'
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", check, "check", self._binaries / "postgres", folder.resolve()],
                user=identity.uid,
                group=identity.gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
        return done.returncode == 0

    def _run_as_server(self, argv: Sequence[str | Path]) -> None:
        identity = self._identity
        subprocess.run(
            [*self._wrapper, *argv],
            user=identity.uid if identity else None,
            group=identity.gid if identity else None,
            extra_groups=[] if identity else None,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )


def _as_ordinary_id() -> list[str]:
    """A command that runs another one in a user namespace where root is not root."""
    wrapper = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    try:
        subprocess.run([*wrapper, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(
            "PostgreSQL does not run as root. The user `nobody` cannot enter the folder of its programs or of its "
            "data, and user namespaces are not to be had here: use a folder others may enter, or an ordinary user."
        ) from error
    return wrapper


def _nobody() -> Identity | None:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return Identity(entry.pw_uid, entry.pw_gid)


def _check_name(name: str) -> None:
    if not _DATABASE_NAME.fullmatch(name):
        raise ValueError(f"not a plain database name: {name!r}")
