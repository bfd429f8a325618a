"""Pytest fixtures over real embedded servers; loaded with `pytest_plugins` in the root conftest.

PostgreSQL and Valkey run once per session, with a database of its own (or an emptied store) per test module. NATS runs
once per module, because streams have no such namespace and a server starts in a tenth of a second. Tests that kill or
wipe a server take their own from a factory.
"""

import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.servers import EmbeddedServer, NatsServer, PostgresServer, ValkeyServer
from sluicegate.devstack.stack_client import Stack
from sluicegate.store.migrations import migrate

_TEMPLATE = "migrated_template"

Server = TypeVar("Server", bound=EmbeddedServer)


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """A folder that other users may enter (pytest's own is closed to them, and PostgreSQL leaves root)."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(servers_folder: Path) -> Iterator[PostgresServer]:
    """One PostgreSQL for the session; not to be killed or stopped (see `own_postgres`)."""
    server = PostgresServer(servers_folder / "postgres", is_durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated database, copied for each module: quicker than migrating again."""
    migrate(postgres_server.create_database(_TEMPLATE))
    return _TEMPLATE


@pytest.fixture(scope="module")
def postgres_dsn(
    postgres_server: PostgresServer, migrated_template: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A fresh migrated database for this test module."""
    name = _database_name(request)
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def empty_postgres_dsn(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database without any table, for tests of migrations."""
    name = _database_name(request)
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def nats_server(servers_folder: Path) -> Iterator[NatsServer]:
    """One NATS with an empty JetStream store for this test module."""
    server = NatsServer(servers_folder / f"nats-{secrets.token_hex(4)}")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture(scope="session")
def valkey_server(servers_folder: Path) -> Iterator[ValkeyServer]:
    """One Valkey for the session."""
    server = ValkeyServer(servers_folder / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def redis_url(valkey_server: ValkeyServer) -> str:
    """Valkey, emptied for this test module."""
    valkey_server.flush()
    return valkey_server.url


@pytest.fixture
def own_nats(servers_folder: Path) -> Iterator[Callable[[], NatsServer]]:
    """Makes started NATS servers that the test may kill, pause or wipe."""
    yield from _factory(lambda: NatsServer(servers_folder / f"own-nats-{secrets.token_hex(4)}"))


@pytest.fixture
def own_valkey(servers_folder: Path) -> Iterator[Callable[[], ValkeyServer]]:
    """Makes started Valkey servers that the test may kill, pause or wipe."""
    yield from _factory(lambda: ValkeyServer(servers_folder / f"own-valkey-{secrets.token_hex(4)}"))


@pytest.fixture
def own_postgres(servers_folder: Path) -> Iterator[Callable[[], PostgresServer]]:
    """Makes started, unmigrated PostgreSQL servers that the test may kill, pause or wipe."""
    yield from _factory(
        lambda: PostgresServer(servers_folder / f"own-postgres-{secrets.token_hex(4)}", is_durable=False)
    )


@pytest.fixture(scope="session")
def stack_arguments() -> Sequence[str]:
    """Arguments of `up` for the session's stack; a test folder may override this."""
    return ("--edge-workers", "2")


@pytest.fixture(scope="session")
def stack(servers_folder: Path, stack_arguments: Sequence[str]) -> Iterator[Stack]:
    """One running stack for the session, with everything real; not to be stopped or wiped (see `own_stack`)."""
    own = OwnStack(servers_folder / "stack", stack_arguments)
    yield own.start()
    own.stop()


@pytest.fixture
def own_stack(servers_folder: Path) -> Iterator[Callable[..., OwnStack]]:
    """Makes stacks that the test starts, breaks and stops: `own_stack("--edge-workers", "2").start()`."""
    made: list[OwnStack] = []

    def make(*arguments: str, env: Mapping[str, str] | None = None) -> OwnStack:
        own = OwnStack(servers_folder / f"stack-{secrets.token_hex(4)}", arguments, env=env)
        made.append(own)
        return own

    yield make
    for own in made:
        if own.is_launched:
            own.stop()
        shutil.rmtree(own.home, ignore_errors=True)


def _factory(make: Callable[[], Server]) -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def start_one() -> Server:
        server = make()
        made.append(server)
        server.start()
        return server

    yield start_one
    for server in made:
        server.stop()
        server.wipe()


def _database_name(request: pytest.FixtureRequest) -> str:
    module = re.sub(r"[^a-z0-9]+", "_", request.node.nodeid.lower())[-40:]
    return f"t_{module}_{secrets.token_hex(3)}"
