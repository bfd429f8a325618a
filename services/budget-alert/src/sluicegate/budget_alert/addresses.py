"""Which addresses a webhook may go to. A name is resolved once; the address that was looked at is connected to.

Refused, unless the endpoint allows them: everything that is not a public unicast address, also when it hides inside an
IPv6 address (mapped, 6to4, Teredo, NAT64), and the metadata servers of clouds that lie at public addresses. A
name that has public and private addresses may be reached at the public ones only.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluicegate.budget_alert.errors import AddressRefusedError, NameNotResolvedError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOOKUPS_AT_ONCE: Final = 64
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# What `is_global` lets pass: protocol assignments (a cloud's metadata server among them), and Azure's metadata server.
_REFUSED: Final = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("168.63.129.16/32"))


class Resolver:
    """Looks names up in threads of its own: names that do not answer must not hold up anything else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="names")

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host, in the order to try them. Raises NameNotResolvedError."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port)
        except (OSError, UnicodeError) as error:
            raise NameNotResolvedError(f"the name cannot be resolved: {error}") from error
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """End the threads; who still looks up is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def allowed(addresses: Sequence[Address], *, allows_private: bool) -> list[Address]:
    """Return those that may be connected to. Raises AddressRefusedError when none is left."""
    left = [address for address in addresses if allows_private or is_public(address)]
    if not left:
        raise AddressRefusedError("the address is private, and this endpoint does not allow private addresses")
    return left


def is_public(address: Address) -> bool:
    """Tell whether an address, and every address inside it, is a public unicast one."""
    inner = _inner(address) if isinstance(address, ipaddress.IPv6Address) else ()
    if inner:
        return all(map(is_public, inner))
    if address.is_multicast or address.is_reserved or any(address in network for network in _REFUSED):
        return False
    return address.is_global and (isinstance(address, ipaddress.IPv4Address) or address in _UNICAST)


def _inner(address: ipaddress.IPv6Address) -> tuple[Address, ...]:
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64:
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
