"""The port that all workers share.

Each worker binds a `SO_REUSEPORT` socket of its own, rather than getting one from the supervisor: when it
dies, the kernel takes its socket out of the group at once and the others get every new client. A socket
that the supervisor held open would go on collecting clients whom nobody serves.

`SO_REUSEPORT` has a price: a second stack of the same user would bind the same port without an error and
share its clients. So the supervisor first probes with a plain bind, then holds the port by a socket that is
bound and never listens: it gets no clients, and a second probe fails even while all workers are dead.
"""

import errno
import socket


class PortTakenError(Exception):
    """Somebody else has the port, or it may not be bound; the message says which."""


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that holds (host, port) against strangers. Port 0: the system chooses."""
    family, address = _resolve(host, port)
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
        with probe:
            # Without this, connections of an earlier run that linger in TIME_WAIT would look like a taken port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        try:
            # Without SO_REUSEADDR here, and with it in the probe, the next probe finds this socket.
            return _bind_shared(family, address, may_reuse_address=False)
        except OSError:
            # Connections of a program that did not share the port linger: held all the same, only less visibly.
            return _bind_shared(family, address)
    except OSError as error:
        reason = "is taken by another program" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error}"
        raise PortTakenError(f"port {port} on {host} {reason}") from error


def bind_shared(host: str, port: int) -> socket.socket:
    """Return a worker's own non-blocking socket on the shared port. It gets no clients before it listens."""
    family, address = _resolve(host, port)
    bound = _bind_shared(family, address)
    bound.setblocking(False)
    return bound


def _bind_shared(
    family: socket.AddressFamily, address: tuple[str, int], *, may_reuse_address: bool = True
) -> socket.socket:
    shared = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, may_reuse_address)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind(address)
    except OSError:
        shared.close()
        raise
    return shared


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise PortTakenError(f"{host} is no address of this machine: {error}") from error
    return family, (str(address[0]), int(address[1]))
