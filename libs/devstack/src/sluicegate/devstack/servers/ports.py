"""Free loopback ports, and the proof of who listens on one."""

import contextlib
import socket

import psutil

LOOPBACK = "127.0.0.1"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a plain bind works now.

    No SO_REUSEPORT here: with it a second stack would share the port without an error.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None = None, *, avoid: frozenset[int] | set[int] = frozenset()) -> int:
    """`preferred` if it is free, else one the kernel picks."""
    if preferred and preferred not in avoid and is_free(preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def listens(pid: int, port: int) -> bool | None:
    """Whether the process (or a child of it) listens on the port; None if the system will not say.

    A taken port is only a line in a server's log, and a client then happily talks to the stranger.
    """
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return False
    refused = False
    for process in family:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.AccessDenied:
            refused = True
            continue
        except psutil.Error:
            continue
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
            return True
    return None if refused else False


def accepts(port: int, host: str = LOOPBACK) -> bool:
    """Whether anybody accepts a connection."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
