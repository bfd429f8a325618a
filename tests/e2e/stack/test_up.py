"""`sluicegate up` and `down`, sentence by sentence: what a person may count on."""

import itertools
import json
import os
import pwd
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import httpx
import psutil
import pytest

from sluicegate.devstack import faults
from sluicegate.devstack.fake_provider.server import running
from sluicegate.devstack.own_stack import OwnStack, StackFailedError
from sluicegate.devstack.servers import NatsServer, PostgresServer, ValkeyServer
from sluicegate.devstack.servers.ports import LOOPBACK, free_port, listens
from sluicegate.devstack.servers.process import Identity, is_alive
from sluicegate.devstack.stack.layout import Home
from sluicegate.devstack.stack.services import FAKE_PROVIDER, SERVICES
from sluicegate.devstack.stack_client import Stack

MakeStack = Callable[..., OwnStack]

EMBEDDED = {"postgres", "nats", "valkey"}
NAMES = EMBEDDED | {row.name for row in SERVICES} | {FAKE_PROVIDER.name, "edge-supervisor"}


# What is there while it runs


def test_stack_json_is_private_and_whole_when_all_is_ready(stack: Stack) -> None:
    assert stat.S_IMODE(stack.path.stat().st_mode) == 0o600
    found = json.loads(stack.path.read_text())
    assert set(found) >= {"edge", "admin", "provider", "nats", "postgres", "redis", "key", "model", "processes"}
    assert stack.key.startswith("sgk_")
    assert set(stack.processes) == NAMES
    assert all(psutil.pid_exists(pid) for pid in stack.all_pids())
    assert len(stack.processes["edge"]) == 2


def test_every_address_leads_to_our_own_process_when_all_is_ready(stack: Stack) -> None:
    places = {
        "edge-supervisor": [stack.edge_url, stack.edge_internal_url],
        "admin": [stack.admin_url],
        "fake-provider": [stack.provider_url],
        "nats": [stack.nats_url],
        "postgres": [stack.postgres_dsn],
        "valkey": [stack.redis_url],
    }
    for name, urls in places.items():
        for url in urls:
            port = httpx.URL(url).port
            assert port is not None
            assert listens(stack.processes[name][0], port) is True, (name, url)


def test_curl_line_works_when_it_is_pasted(stack: Stack) -> None:
    printed = stack.path.parent.with_name(f"{stack.path.parent.name}.up.log").read_text()
    line = next(line for line in printed.splitlines() if line.startswith("curl "))
    if shutil.which("curl"):
        text = subprocess.run(["/bin/sh", "-c", f"{line} -sS"], capture_output=True, check=True, timeout=30).stdout
    else:
        words = shlex.split(line)
        headers = dict(word.split(": ", 1) for flag, word in itertools.pairwise(words) if flag == "-H")
        text = httpx.post(words[1], headers=headers, content=words[-1]).content
    assert json.loads(text)["object"] == "chat.completion"


def test_no_secret_is_on_a_command_line_when_all_is_ready(stack: Stack) -> None:
    secrets = json.loads((stack.path.parent / "secrets.json").read_text())
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in stack.all_pids()]
    assert not [line for line in lines for value in secrets.values() if value in line]


def test_edge_is_not_told_where_postgres_is_when_all_is_ready(stack: Stack) -> None:
    for pid in (*stack.processes["edge"], *stack.processes["edge-supervisor"]):
        assert "SLUICEGATE_POSTGRES_DSN" not in psutil.Process(pid).environ()


def test_data_is_not_for_others_when_all_is_ready(stack: Stack) -> None:
    home = stack.path.parent
    for path in (home / "secrets.json", home / "data" / "nats" / "server.conf", home / "logs" / "edge.log"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o077 or not stat.S_IMODE(path.parent.stat().st_mode) & 0o077, path
    assert (home / ".gitignore").read_text() == "*\n"


# Start, stop, start again


def test_data_survives_a_restart_and_fresh_wipes_it(own_stack: MakeStack) -> None:
    own = own_stack()
    first = own.start()
    tenant = _create_tenant(first, "kept")
    assert _chat(first).status_code == 200
    assert own.stop(SIGINT) == 0
    assert not (own.home / "stack.json").exists()

    second = own.start()
    assert second.key == first.key
    assert second.admin_token == first.admin_token
    assert _chat(second).status_code == 200
    assert _tenant(second, tenant).status_code == 200
    own.stop()

    third = own.start("--fresh")
    assert third.key != first.key
    assert _chat(third).status_code == 200
    assert _chat(third, key=first.key).status_code == 401
    assert _tenant(third, tenant).status_code == 404


def test_detached_stack_is_ready_when_up_returns_and_down_stops_it(servers_folder: Path) -> None:
    home = servers_folder / "detached"
    with _end_of_home(home):
        done = _sluicegate("up", "--home", str(home), "--detach")
        assert done.returncode == 0, done.stdout + done.stderr
        stack = Stack.read(home / "stack.json")
        assert _chat(stack).status_code == 200

        again = _sluicegate("up", "--home", str(home))
        assert again.returncode == 1
        assert "runs here already" in again.stderr

        family = _family(stack)
        done = _sluicegate("down", "--home", str(home))
        assert (done.returncode, done.stdout) == (0, "Stopped.\n")
        assert _left_of(family, within_s=0.1) == []
        assert not stack.path.exists()
        done = _sluicegate("down", "--home", str(home))
        assert (done.returncode, done.stdout) == (0, "Nothing runs here.\n")


def test_down_says_which_part_died_when_a_detached_stack_has_ended_by_itself(servers_folder: Path) -> None:
    home = servers_folder / "deserted"
    with _end_of_home(home):
        assert _sluicegate("up", "--home", str(home), "--detach").returncode == 0
        stack = Stack.read(home / "stack.json")
        family = _family(stack)
        faults.kill(stack.processes["usage-writer"])
        assert _left_of(family, within_s=30) == []
        done = _sluicegate("down", "--home", str(home))
    assert done.returncode == 0
    assert "usage-writer was ended by SIGKILL" in done.stdout
    assert str(home / "logs" / "usage-writer.log") in done.stdout


def test_second_stack_takes_other_ports_when_the_usual_ones_are_taken(own_stack: MakeStack) -> None:
    with _taken(8080, 9080, 8081, 9081, 9082, 9084, 8089, 15432, 14222, 16379) as taken:
        stack = own_stack().start()
        urls = [stack.edge_url, stack.edge_internal_url, stack.admin_url, stack.provider_url, stack.nats_url]
        ports = {httpx.URL(url).port for url in (*urls, stack.redis_url, stack.postgres_dsn)}
        assert len(ports) == 7
        assert not ports & taken
        assert _chat(stack).status_code == 200


def test_port_is_the_users_own_when_the_environment_sets_it(own_stack: MakeStack) -> None:
    port = free_port()
    assert own_stack(env={"SLUICEGATE_EDGE_PORT": str(port)}).start().edge_url == f"http://{LOOPBACK}:{port}"


# Nothing is left


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGKILL], ids=["ctrl-c", "term", "kill -9"])
def test_nothing_is_left_running_when_up_ends(own_stack: MakeStack, number: int) -> None:
    own = own_stack("--edge-workers", "2")
    stack = own.start()
    family = _family(stack)
    with _open_stream(stack):
        os.kill(own.process.pid, number)
        assert _left_of(family, within_s=30) == []
    assert own.process.wait(deadline_s=10) == (0 if number != SIGKILL else -SIGKILL)
    assert not stack.path.exists()


def test_nothing_is_left_running_when_the_supervisor_is_killed(own_stack: MakeStack) -> None:
    own = own_stack("--edge-workers", "2")
    stack = own.start()
    family = _family(stack)
    with _open_stream(stack):
        faults.kill([json.loads(stack.path.read_text())["supervisor"]])
        assert _left_of(family, within_s=30) == []
    assert own.process.wait(deadline_s=10) == 1
    assert "the supervisor ended by SIGKILL" in own.text()
    own.start()


def test_nothing_is_left_running_when_up_is_ended_during_the_start(own_stack: MakeStack) -> None:
    own = own_stack()
    own.launch()
    _until(lambda: "✓ postgres" in own.text())
    family = [psutil.Process(own.process.pid), *psutil.Process(own.process.pid).children(recursive=True)]
    assert len(family) > 4
    assert own.stop(SIGINT) == 0
    assert _left_of(family, within_s=10) == []


# A part that dies


def test_dead_service_is_named_with_its_last_lines_and_all_stops(own_stack: MakeStack) -> None:
    own = own_stack()
    stack = own.start()
    family = _family(stack)
    faults.kill(stack.processes["usage-writer"])
    assert _left_of(family, within_s=30) == []
    assert own.process.wait(deadline_s=10) == 1
    text = own.text()
    assert "usage-writer was ended by SIGKILL" in text
    last_line = (own.home / "logs" / "usage-writer.log").read_text().splitlines()[-1]
    assert last_line in text


def test_nothing_is_left_running_when_a_detaching_up_is_killed_during_the_start(own_stack: MakeStack) -> None:
    own = own_stack("--detach")
    own.launch()
    _until(lambda: "✓ postgres" in own.text())
    family = [psutil.Process(own.process.pid), *psutil.Process(own.process.pid).children(recursive=True)]
    own.process.signal(SIGKILL)
    assert _left_of(family, within_s=30) == []


def test_service_that_cannot_start_is_named_with_its_reason(own_stack: MakeStack) -> None:
    own = own_stack(env={"SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN": "short"})
    with pytest.raises(StackFailedError) as failure:
        own.start()
    assert "admin ended with status 2" in str(failure.value)
    assert "SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN" in str(failure.value)
    assert own.process.exit_status() == 1


def test_dead_parts_are_started_again_when_asked_for(own_stack: MakeStack) -> None:
    own = own_stack("--restart", "--edge-workers", "2")
    stack = own.start()
    for name in ("usage-writer", "edge-supervisor", "nats"):
        old = stack.reload().processes[name]
        faults.kill(old)
        _until(lambda name=name, old=old: stack.reload().processes.get(name, old) != old)  # type: ignore[misc]
    _until(lambda: _chat(stack).status_code == 200)
    assert own.text().count("was ended by SIGKILL") == 3


def test_new_worker_is_listed_when_an_edge_worker_was_killed(own_stack: MakeStack) -> None:
    own = own_stack("--edge-workers", "2")
    stack = own.start()
    old = stack.processes["edge"]
    faults.kill(old[:1])
    _until(lambda: len(stack.reload().processes["edge"]) == 2 and stack.reload().processes["edge"] != old)
    assert _chat(stack).status_code == 200
    assert f"worker {old[0]} of edge is gone" in own.text()


# Other neighbours


def test_external_servers_are_used_and_left_alone_when_the_environment_names_them(
    own_postgres: Callable[[], PostgresServer],
    own_nats: Callable[[], NatsServer],
    own_valkey: Callable[[], ValkeyServer],
    own_stack: MakeStack,
) -> None:
    servers = postgres, nats, valkey = own_postgres(), own_nats(), own_valkey()
    env = {
        "SLUICEGATE_POSTGRES_DSN": postgres.dsn("elsewhere"),
        "SLUICEGATE_NATS_URL": nats.url,
        "SLUICEGATE_REDIS_URL": valkey.url,
    }
    own = own_stack(env=env)
    stack = own.start()
    assert not EMBEDDED & set(stack.processes)
    assert (stack.postgres_dsn, stack.nats_url, stack.redis_url) == tuple(env.values())
    assert _chat(stack).status_code == 200
    assert postgres.execute("select count(*) > 0 from schema_migrations", "elsewhere") == "t"
    own.stop()
    assert all(server.is_running for server in servers)
    again = own.start("--fresh")
    assert _chat(again).status_code == 200


def test_unreachable_external_server_is_named_without_its_password(own_stack: MakeStack) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))  # bound, not listening: refused
        url = f"nats://user:secret-word@{LOOPBACK}:{holder.getsockname()[1]}"
        with pytest.raises(StackFailedError, match=r"SLUICEGATE_NATS_URL: .* does not answer") as failure:
            own_stack(env={"SLUICEGATE_NATS_URL": url}).start()
    assert "secret-word" not in str(failure.value)


async def test_demo_model_leads_to_another_provider_when_told(own_stack: MakeStack) -> None:
    async with running() as provider:
        stack = own_stack("--provider-url", f"{provider.url}/v1").start()
        assert FAKE_PROVIDER.name not in stack.processes
        assert stack.provider_url == provider.url
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                f"{stack.openai_base_url}/chat/completions",
                json={"model": stack.model, "messages": [{"role": "user", "content": "Hello!"}]},
                headers={"Authorization": f"Bearer {stack.key}"},
            )
        assert answer.status_code == 200


# Users and folders


def test_stack_runs_when_its_folder_is_closed_to_others(tmp_path: Path) -> None:
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    own = OwnStack(tmp_path / "home")
    try:
        assert _chat(own.start()).status_code == 200
    finally:
        own.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_stack_runs_as_an_ordinary_user_when_started_by_one(servers_folder: Path) -> None:
    entry = pwd.getpwnam("nobody")
    nobody = Identity(entry.pw_uid, entry.pw_gid)
    home = servers_folder / "nobody" / "home"
    home.parent.mkdir()
    os.chown(home.parent, nobody.uid, nobody.gid)
    own = OwnStack(
        home,
        env={
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
            "HOME": "/nonexistent",
        },
        python=_python_for(nobody),
        identity=nobody,
    )
    try:
        stack = own.start()
        assert _chat(stack).status_code == 200
        assert {psutil.Process(pid).uids().real for pid in stack.all_pids()} == {nobody.uid}
    finally:
        own.stop()


@pytest.mark.parametrize("damage", ["lost", "empty", "cut", "odd"])
def test_up_says_what_to_do_when_the_secrets_are_damaged(own_stack: MakeStack, damage: str) -> None:
    home = own_stack().home
    Home(home).create()
    secrets = home / "secrets.json"
    (home / "data" / "postgres").mkdir()
    if damage != "lost":
        secrets.write_text({"empty": "", "cut": '{"admin_tok', "odd": "[]"}[damage])

    done = _sluicegate("up", "--home", str(home))

    assert done.returncode == 1
    assert str(secrets) in done.stdout
    assert "--fresh" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_fresh_stack_starts_when_everything_in_the_folder_is_damaged(own_stack: MakeStack) -> None:
    own = own_stack("--fresh")
    Home(own.home).create()
    for name in ("secrets.json", "processes.json", "lock"):
        (own.home / name).write_text('{"cut')
    (own.home / "data" / "postgres").write_text("no folder")
    assert _chat(own.start()).status_code == 200


def test_up_refuses_a_folder_that_holds_other_things(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    done = _sluicegate("up", "--home", str(tmp_path), "--fresh")
    assert done.returncode == 1
    assert "is not a stack's folder" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is somebody else's")
def test_up_says_whose_the_folder_is_when_it_belongs_to_another_user(servers_folder: Path) -> None:
    entry = pwd.getpwnam("nobody")
    home = servers_folder / "roots-home"
    Home(home).create()
    nobody = Identity(entry.pw_uid, entry.pw_gid)
    own = OwnStack(
        home, env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, python=_python_for(nobody), identity=nobody
    )
    with pytest.raises(StackFailedError, match="belongs to another user"):
        own.start()
    assert "Traceback" not in own.text()


# Helpers


def _chat(stack: Stack, *, key: str | None = None) -> httpx.Response:
    body = {"model": stack.model, "messages": [{"role": "user", "content": "Hello!"}]}
    headers = {"Authorization": f"Bearer {key or stack.key}"}
    return httpx.post(f"{stack.openai_base_url}/chat/completions", json=body, headers=headers, timeout=10)


class _open_stream:  # noqa: N801 - used as a context only
    """A stream that would run for a minute: an edge with work in hand."""

    def __init__(self, stack: Stack) -> None:
        self._client = httpx.Client(timeout=60)
        body = {"model": stack.model, "stream": True, "messages": [], "fake": "events=600&pace_ms=100&write=each"}
        headers = {"Authorization": f"Bearer {stack.key}"}
        self._request = self._client.build_request(
            "POST", f"{stack.openai_base_url}/chat/completions", json=body, headers=headers
        )

    def __enter__(self) -> None:
        answer = self._client.send(self._request, stream=True)
        assert answer.status_code == 200, answer.read()
        assert next(answer.iter_raw())

    def __exit__(self, *_: object) -> None:
        self._client.close()


def _create_tenant(stack: Stack, name: str) -> str:
    answer = httpx.post(f"{stack.admin_url}/api/tenants", json={"name": name}, headers=stack.admin_headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _tenant(stack: Stack, tenant: str) -> httpx.Response:
    return httpx.get(f"{stack.admin_url}/api/tenants/{tenant}", headers=stack.admin_headers)


def _family(stack: Stack) -> list[psutil.Process]:
    """The supervisor, all parts, and what they started."""
    supervisor = psutil.Process(json.loads(stack.path.read_text())["supervisor"])
    family = [supervisor, *supervisor.children(recursive=True)]
    assert {process.pid for process in family} >= set(stack.all_pids())
    return family


def _left_of(family: list[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """Who still runs."""
    deadline = time.monotonic() + within_s
    while left := [process for process in family if is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _sluicegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluicegate.cli", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


class _end_of_home:  # noqa: N801 - used as a context only
    """A detached stack must not outlive a failed test."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _sluicegate("down", "--home", str(self._home))


class _taken:  # noqa: N801 - used as a context only
    """Listens on these ports, as far as nobody else does already."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._listeners: list[socket.socket] = []

    def __enter__(self) -> set[int]:
        for port in self._ports:
            try:
                self._listeners.append(socket.create_server((LOOPBACK, port)))
            except OSError:
                continue
        return set(self._ports)

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()


def _until(is_so: Callable[[], bool], deadline_s: float = 60) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            if is_so():
                return
        except (httpx.TransportError, FileNotFoundError):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _python_for(identity: Identity) -> str:
    """An interpreter like ours that this user may run and that finds our packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        try:
            subprocess.run(
                [python, "-c", "import sluicegate.cli.application"],
                user=identity.uid,
                group=identity.gid,
                extra_groups=[],
                cwd="/",
                env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("the interpreter or the checkout is below a folder that other users may not enter")
