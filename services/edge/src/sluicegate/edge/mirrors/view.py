"""What the edge knows, as a request asks it: who is calling (`principal`), and where an alias leads (`targets`).

Rule: a key is good only if it, its team, department and tenant exist and are enabled; a reference that
leads nowhere is 503 and never "no limits". While the mirror is not fresh an unknown key is 503, not 401.
Theory: records change rarely and requests come often, so every answer is worked out once and kept until
the next change, which drops all kept answers: working one out again costs a few µs.
Mechanics: the catalogue is decoded as it arrives, keys only when they call (100 000 keys load as bytes).
A record that does not decode is counted and logged and does not stop the feed.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from sluicegate.contracts.catalogue import (
    RECORD_TYPES,
    CatalogueRecord,
    Key,
    Model,
    Provider,
    Route,
)
from sluicegate.contracts.keys import has_key_form, key_digest
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.targets import Target, resolve_target
from sluicegate.edge.outbound.pool import Pools
from sluicegate.runtime.key_ring import KeyRing, SealError
from sluicegate.runtime.logs import get_logger

if TYPE_CHECKING:
    from sluicegate.edge.phases.records import SharedHalves

Bucket = Literal["keys", "catalogue"]

_MAX_KEPT_CREDENTIALS: Final = 20_000
_DECODERS: Final = {noun: msgspec.json.Decoder(record).decode for noun, record in RECORD_TYPES.items()}
_decode_key: Final = msgspec.json.Decoder(Key).decode
_log = get_logger(__name__)


class Principal:
    """Who is calling: a good key with everything above it, and what has been worked out for it.

    `targets` by alias; `shared_halves` of its records (`phases.records`).
    """

    __slots__ = ("department", "expires_at_us", "key", "shared_halves", "targets", "team", "tenant")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.tenant = key.tenant
        self.department = key.department
        self.team = key.team
        self.expires_at_us = key.expires_at_us
        self.targets: dict[str, tuple[Target, ...]] = {}
        self.shared_halves: dict[tuple[str, str | None, str | None, int | None], SharedHalves] = {}


class View:
    """Keys and catalogue of one process. `is_fresh` tells whether an unknown key is certain to be unknown."""

    def __init__(self, pools: Pools, key_ring: KeyRing, is_fresh: Callable[[], bool]) -> None:
        self._pools = pools
        self._key_ring = key_ring
        self._is_fresh = is_fresh
        self._keys: dict[str, bytes] = {}
        self._records: dict[str, dict[str, CatalogueRecord]] = {noun: {} for noun in RECORD_TYPES}
        self._routes: dict[tuple[str | None, str], dict[str, Route]] = {}
        self._principals: dict[bytes, Principal] = {}
        self._targets: dict[str, Target] = {}
        self.bad_records = 0

    @property
    def entries(self) -> int:
        """How many records are held."""
        return len(self._keys) + sum(len(records) for records in self._records.values())

    # Fed by mirrors.feed

    def replace(self, bucket: Bucket, entries: dict[str, bytes]) -> None:
        """Put a whole bucket in place of what is known of it."""
        self._forget_answers()
        if bucket == "keys":
            self._keys = entries
            return
        records: dict[str, dict[str, CatalogueRecord]] = {noun: {} for noun in RECORD_TYPES}
        for name, value in entries.items():
            noun, _, record_id = name.partition(".")
            record = self._decode(noun, name, value)
            if record is not None:
                records[noun][record_id] = record
        self._records = records
        self._routes = {}
        for route in records["route"].values():
            if isinstance(route, Route):
                self._index_route(route)

    def apply(self, bucket: Bucket, key: str, value: bytes | None) -> None:
        """Apply one change; None: deleted."""
        self._forget_answers()
        if bucket == "keys":
            if value is None:
                self._keys.pop(key, None)
            else:
                self._keys[key] = value
            return
        noun, _, record_id = key.partition(".")
        record = None if value is None else self._decode(noun, key, value)
        known = self._records.get(noun)
        if known is None or (record is None and value is not None):
            return
        before = known.pop(record_id, None)
        if isinstance(before, Route):
            candidates = self._routes[before.tenant, before.alias]
            candidates.pop(before.id, None)
            if not candidates:
                del self._routes[before.tenant, before.alias]
        if record is not None:
            known[record_id] = record
            if isinstance(record, Route):
                self._index_route(record)

    def _decode(self, noun: str, name: str, value: bytes) -> CatalogueRecord | None:
        decode = _DECODERS.get(noun)
        if decode is None:
            return None
        try:
            return decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            self.bad_records += 1
            _log.error("a catalogue record cannot be read", record=name, error=str(error))
            return None

    def _index_route(self, route: Route) -> None:
        self._routes.setdefault((route.tenant, route.alias), {})[route.id] = route

    def _forget_answers(self) -> None:
        self._principals.clear()
        self._targets.clear()

    # Asked by requests

    def principal(self, credential: bytes) -> Principal:
        """Return who holds this gateway key. Refusal: nobody, or not now. Expiry is the caller's to check."""
        principal = self._principals.get(credential)
        if principal is None:
            principal = self._find_principal(credential)
            if len(self._principals) >= _MAX_KEPT_CREDENTIALS:
                self._principals.clear()
            self._principals[credential] = principal
        return principal

    def _find_principal(self, credential: bytes) -> Principal:
        if not has_key_form(credential):
            raise Refusal("invalid_key", "This is not a gateway key. Check it for typing errors; it begins with sgk_.")
        digest = key_digest(credential)
        value = self._keys.get(digest)
        if value is None:
            if not self._is_fresh():
                raise Refusal("dependency_unavailable", "The gateway's list of keys is not up to date. Try again.")
            raise Refusal("invalid_key", "This key is not known. It may have been deleted.")
        try:
            key = _decode_key(value)
        except (msgspec.DecodeError, RecursionError) as error:
            self.bad_records += 1
            _log.error("a key record cannot be read", record=digest, error=str(error))
            raise Refusal("dependency_unavailable", "The gateway cannot read this key's record.") from error
        self._check_standing(key)
        return Principal(key)

    def _check_standing(self, key: Key) -> None:
        if key.revoked_at_us is not None:
            raise Refusal("key_revoked", "This key was revoked. Ask for a new one.")
        if not key.enabled:
            raise Refusal("key_disabled", "This key is disabled. Ask whoever gave it out.")
        for noun, record_id in (("tenant", key.tenant), ("department", key.department), ("team", key.team)):
            if record_id is None:
                continue
            owner = self._records[noun].get(record_id)
            if owner is None:
                raise Refusal("dependency_unavailable", f"The gateway does not know this key's {noun} yet. Try again.")
            if not owner.enabled:
                raise Refusal("key_disabled", f"The {noun} of this key is disabled. Ask whoever gave it out.")

    def targets(self, principal: Principal, alias: str) -> tuple[Target, ...]:
        """Return where `alias` leads for this caller, in order. Refusal: nowhere, or not for this key."""
        targets = principal.targets.get(alias)
        if targets is None:
            targets = self._find_targets(principal, alias)
            principal.targets[alias] = targets
        return targets

    def _find_targets(self, principal: Principal, alias: str) -> tuple[Target, ...]:
        route = self._route(principal.tenant, alias)
        if route is None:
            raise Refusal(
                "model_not_found", f"There is no model {alias[:256]!r}. GET /v1/models lists them.", param="model"
            )
        if not allows_model(principal.key, alias):
            raise Refusal(
                "model_not_allowed",
                f"This key may not call {alias!r}. GET /v1/models lists what it may.",
                param="model",
            )
        targets = tuple(target for target in map(self._target, self._usable_models(route, principal.tenant)) if target)
        if not targets:
            raise Refusal("no_provider_available", f"No target of {alias!r} can be used now.")
        return targets

    def _route(self, tenant: str, alias: str) -> Route | None:
        for owner in (tenant, None):
            candidates = self._routes.get((owner, alias))
            if candidates:
                route = candidates[min(candidates)]
                return route if route.enabled else None
        return None

    def _usable_models(self, route: Route, tenant: str) -> Iterator[Model]:
        for place in route.targets:
            model = self._records["model"].get(place.model)
            if isinstance(model, Model) and model.enabled:
                provider = self._records["provider"].get(model.provider)
                if isinstance(provider, Provider) and provider.enabled and provider.tenant in (None, tenant):
                    yield model

    def _target(self, model: Model) -> Target | None:
        target = self._targets.get(model.id)
        if target is None:
            provider = self._records["provider"][model.provider]
            try:
                assert isinstance(provider, Provider)
                target = resolve_target(model, provider, self._pools, self._key_ring)
            except (ValueError, SealError) as error:
                self.bad_records += 1
                _log.error("a provider cannot be used", provider=provider.id, error=str(error))
                return None
            self._targets[model.id] = target
        return target

    def callable_routes(self, principal: Principal) -> list[tuple[Route, Model]]:
        """Return exactly the routes that a call by this key would accept, each with its first usable model."""
        found: list[tuple[Route, Model]] = []
        for alias in {alias for owner, alias in self._routes if owner in (None, principal.tenant)}:
            route = self._route(principal.tenant, alias)
            if route is None or not allows_model(principal.key, alias):
                continue
            model = next((m for m in self._usable_models(route, principal.tenant) if self._target(m)), None)
            if model is not None:
                found.append((route, model))
        return sorted(found, key=lambda pair: pair[0].alias)


def allows_model(key: Key, alias: str) -> bool:
    """Tell whether a key may call an alias; a pattern that ends with `*` allows every rest."""
    if key.allowed_models is None:
        return True
    return any(
        alias.startswith(pattern[:-1]) if pattern.endswith("*") else alias == pattern for pattern in key.allowed_models
    )
