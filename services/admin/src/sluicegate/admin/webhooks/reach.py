"""Whether a URL leads to private addresses, as far as it can be told when it is set.

Names are looked up from here and now: a first answer for the person who types. The worker looks again before each
delivery, and what it finds counts. A name that cannot be looked up is taken.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from sluicegate.runtime.addresses import Address, is_public

_LOOK_UP_WITHIN_S: Final = 2.0
_LOCAL_NAMES: Final = ("localhost", ".localhost", ".localdomain", ".internal", ".local")

LookUp = Callable[[str], Awaitable[Sequence[Address]]]


async def look_up(host: str) -> Sequence[Address]:
    """Return the addresses of a name or address; none if it cannot be told in time."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOK_UP_WITHIN_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return ()
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]


async def private_reason(url: str, look: LookUp = look_up) -> str | None:
    """Return why a URL is private, None if it is not or cannot be told.

    A name with public addresses too is no private one: deliveries go to those.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == _LOCAL_NAMES[0] or host.endswith(_LOCAL_NAMES[1:]):
        return f"{host} is a name of this network"
    addresses = await look(host)
    if not addresses or any(map(is_public, addresses)):
        return None
    return f"{host} leads to the private address {addresses[0]}" if host != str(addresses[0]) else f"{host} is private"
