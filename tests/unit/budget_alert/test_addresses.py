"""Which addresses a webhook may go to."""

import ipaddress

import pytest

from sluicegate.budget_alert.addresses import Resolver, allowed
from sluicegate.budget_alert.errors import AddressRefusedError, NameNotResolvedError
from sluicegate.runtime.addresses import is_public


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
