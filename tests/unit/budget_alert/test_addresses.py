"""Which addresses a webhook may go to."""

import ipaddress

import pytest

from sluicegate.budget_alert.addresses import Resolver, allowed, is_public
from sluicegate.budget_alert.errors import AddressRefusedError, NameNotResolvedError


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo; the client is 127.0.0.1
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_address_is_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "93.184.215.14", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_address_is_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_only_public_addresses_are_left_when_a_name_has_both() -> None:
    both = [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("1.1.1.1")]
    assert allowed(both, allows_private=False) == both[1:]
    assert allowed(both, allows_private=True) == both


def test_addresses_are_refused_when_none_is_public() -> None:
    with pytest.raises(AddressRefusedError):
        allowed([ipaddress.ip_address("127.0.0.1")], allows_private=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "localhost"])
async def test_every_way_to_write_loopback_is_seen_through(host: str) -> None:
    resolver = Resolver()
    addresses = await resolver.addresses(host, 80)
    resolver.close()
    assert addresses
    assert not any(map(is_public, addresses))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".invalid"])
async def test_resolver_says_so_when_a_name_has_no_address(host: str) -> None:
    resolver = Resolver()
    with pytest.raises(NameNotResolvedError):
        await resolver.addresses(host, 80)
    resolver.close()
