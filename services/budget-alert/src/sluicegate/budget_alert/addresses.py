"""Where a webhook may go. A name is resolved once; the address that was looked at is the one that is connected to.

Addresses that are not public are refused, unless the endpoint allows them. A name that has public and private
addresses may be reached at the public ones only.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sluicegate.budget_alert.errors import AddressRefusedError, NameNotResolvedError
from sluicegate.runtime.addresses import Address, is_public

_LOOKUPS_AT_ONCE: Final = 256


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


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
