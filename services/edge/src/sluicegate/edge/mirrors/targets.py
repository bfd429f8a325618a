"""A model at a provider, made ready for requests: everything that does not change between them is bytes already."""

from urllib.parse import quote

import msgspec

from sluicegate.contracts.catalogue import Model, Provider
from sluicegate.contracts.money import Price
from sluicegate.edge.outbound.pool import Pool, Pools, split_base_url
from sluicegate.runtime.key_ring import KeyRing

_USER_AGENT = b"sluicegate"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request may go. `fixed_headers` ends without the blank line; `labels` go to the client.

    `is_limited`: its provider or model has limits of its own (`View.target_bounds`).
    """

    provider_id: str
    provider_name: str
    model_id: str
    model_name: str
    model_json: bytes
    pool: Pool
    path_prefix: bytes
    fixed_headers: bytes
    labels: bytes
    prices: tuple[Price, ...]
    max_output_tokens: int | None
    is_limited: bool
    supports_stream_options: bool
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    total_timeout_s: float


def resolve_target(model: Model, provider: Provider, pools: Pools, key_ring: KeyRing, *, is_limited: bool) -> Target:
    """Build a target. ValueError or SealError: the provider's URL or credential is not usable."""
    origin, host, prefix = split_base_url(provider.base_url)
    headers = [
        b"host: " + host.encode("idna" if not host.isascii() else "ascii"),
        b"user-agent: " + _USER_AGENT,
        b"accept: */*",
        b"accept-encoding: identity",
        b"content-type: application/json",
    ]
    if provider.credential is not None:
        secret = key_ring.open(provider.credential, provider.id.encode())
        if b"\r" in secret or b"\n" in secret:
            raise ValueError("the credential holds a line end")
        headers.append(b"authorization: Bearer " + secret)
    return Target(
        provider_id=provider.id,
        provider_name=provider.name,
        model_id=model.id,
        model_name=model.name,
        model_json=msgspec.json.encode(model.name),
        pool=pools.pool_of(origin, provider.max_connections),
        path_prefix=prefix.encode("ascii"),
        fixed_headers=b"\r\n".join(headers) + b"\r\n",
        labels=b"x-sluicegate-provider: %b\r\nx-sluicegate-model: %b\r\n" % (_label(provider.name), _label(model.name)),
        prices=model.prices,
        max_output_tokens=model.max_output_tokens,
        is_limited=is_limited,
        supports_stream_options=provider.supports_stream_options,
        connect_timeout_s=provider.connect_timeout_ms / 1000,
        first_byte_timeout_s=provider.first_byte_timeout_ms / 1000,
        idle_timeout_s=provider.idle_timeout_ms / 1000,
        total_timeout_s=provider.total_timeout_ms / 1000,
    )


def _label(name: str) -> bytes:
    """Return a name as a header value: what is not plain ASCII is percent-encoded."""
    return quote(name, safe=" /:@+,;=()!*'-._~").encode()
