"""Which IP addresses are public: a server that sends requests wherever it is told must not reach its own network.

Not public is all but public unicast addresses, also when one hides inside an IPv6 address (mapped, 6to4, Teredo,
NAT64), and the metadata servers of clouds that lie at public addresses. Nothing here looks names up.
"""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# What `is_global` lets pass: protocol assignments (a cloud's metadata server among them), and Azure's metadata server.
_REFUSED: Final = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("168.63.129.16/32"))


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
