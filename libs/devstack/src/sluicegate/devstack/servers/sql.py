"""SQL from code that has no event loop: by psql, whose password goes through its environment."""

import os
import subprocess
from urllib.parse import unquote, urlsplit

from sluicegate.devstack.servers import binaries


class SqlError(RuntimeError):
    """psql's own message."""


def run_sql(dsn: str, statement: str) -> str:
    """Run statements and return what psql prints: rows as lines, columns parted by `|`."""
    parts = urlsplit(dsn)
    login = {"PGPASSWORD": unquote(parts.password or ""), "PGCONNECT_TIMEOUT": "5", "PGAPPNAME": "devstack"}
    user, _, place = parts.netloc.rpartition("@")
    address = parts._replace(netloc=f"{user.partition(':')[0]}@{place}").geturl()
    done = subprocess.run(
        [binaries.postgres_folder() / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", address, "-c", statement],
        env=login | {"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SqlError(done.stderr.strip())
    return done.stdout.strip()
