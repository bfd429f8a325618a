"""What the edge knows, as a request asks it: who is calling, where an alias leads, which limits bind both.

Rule: a key is good only if it, its team, department and tenant exist and are enabled; a reference that
leads nowhere is 503 and never "no limits". While the mirror is not fresh an unknown key is 503, not 401.
Theory: records change rarely and requests come often, so every answer is worked out once and kept until
the next change, after which no kept answer counts: working one out again costs 5 µs, and 50 µs with limits.
Those about callers are replaced when they call again, because dropping all of 10 000 held the loop for 30 ms.
Mechanics: the catalogue is decoded as it arrives, keys only when they call (100 000 keys load as bytes).
A record that does not decode is counted and logged and does not stop the feed.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from sluicegate.contracts.catalogue import (
    RECORD_TYPES,
    Budget,
    CatalogueRecord,
    Department,
    Key,
    Limits,
    Model,
    Provider,
    Route,
    Team,
    Tenant,
)
from sluicegate.contracts.keys import has_key_form, key_digest
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.limits import NO_LIMITS, Bounds, LimitFinder, Scoped
from sluicegate.edge.mirrors.targets import Target, resolve_target
from sluicegate.edge.outbound.pool import Pools
from sluicegate.runtime.key_ring import KeyRing, SealError
from sluicegate.runtime.logs import get_logger

if TYPE_CHECKING:
    from sluicegate.edge.phases.records import SharedHalves

_Place = TypeVar("_Place")
_Name = TypeVar("_Name")
_Entry = TypeVar("_Entry")
Bucket = Literal["keys", "catalogue"]

_MAX_KEPT_CREDENTIALS: Final = 20_000
# About 4 KiB each. All keys together: each key with a thousand of its own took gigabytes.
_MAX_KEPT_END_USERS: Final = 10_000
_DECODERS: Final = {noun: msgspec.json.Decoder(record).decode for noun, record in RECORD_TYPES.items()}
_decode_key: Final = msgspec.json.Decoder(Key).decode
_log = get_logger(__name__)


class Principal:
    """Who is calling: a good key with everything above it, and what has been worked out for it.

    `scopes`: what it falls under, from the key upwards. `targets` by alias; `bounds` where no end user
    is told apart; `shared_halves` of its records (`phases.records`). `generation`: of the view that it was found in.
    """

    __slots__ = (
        "bounds",
        "department",
        "end_user_limits",
        "expires_at_us",
        "generation",
        "key",
        "scopes",
        "shared_halves",
        "targets",
        "team",
        "tenant",
    )

    def __init__(
        self, key: Key, scopes: tuple[Scoped, ...] = (), end_user_limits: Limits = NO_LIMITS, generation: int = 0
    ) -> None:
        self.key = key
        self.generation = generation
        self.scopes = scopes
        # None: end users are not told apart.
        self.end_user_limits = None if end_user_limits == NO_LIMITS else end_user_limits
        self.bounds: Bounds | None = None
        self.tenant = key.tenant
        self.department = key.department
        self.team = key.team
        self.expires_at_us = key.expires_at_us
        self.targets: dict[str, tuple[Target, ...]] = {}
        self.shared_halves: dict[tuple[str, str | None, str | None, int | None], SharedHalves] = {}


class View:
    """Keys and catalogue of one process. `is_fresh` tells whether an unknown key is certain to be unknown.

    `generation` grows with each change: answers of an earlier one are not to be used any more.
    """

    def __init__(
        self, pools: Pools, key_ring: KeyRing, limit_finder: LimitFinder, is_fresh: Callable[[], bool]
    ) -> None:
        self._pools = pools
        self._limit_finder = limit_finder
        self._key_ring = key_ring
        self._is_fresh = is_fresh
        self._keys: dict[str, bytes] = {}
        self._records: dict[str, dict[str, CatalogueRecord]] = {noun: {} for noun in RECORD_TYPES}
        self._routes: dict[tuple[str | None, str], dict[str, Route]] = {}
        self._budgets: dict[tuple[str, str], dict[str, Budget]] = {}
        self._principals: dict[bytes, Principal] = {}
        self._targets: dict[str, Target] = {}
        self._end_user_bounds: dict[tuple[Principal, str], Bounds] = {}
        self._target_bounds: dict[str, Bounds] = {}
        self.bad_records = 0
        self.generation = 0

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
        self._budgets = {}
        for record in (*records["route"].values(), *records["budget"].values()):
            self._index(record)

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
            _drop(self._routes, (before.tenant, before.alias), before.id)
        elif isinstance(before, Budget):
            _drop(self._budgets, (before.scope, before.scope_id), before.id)
        if record is not None:
            known[record_id] = record
            self._index(record)

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

    def _index(self, record: CatalogueRecord) -> None:
        if isinstance(record, Route):
            self._routes.setdefault((record.tenant, record.alias), {})[record.id] = record
        elif isinstance(record, Budget):
            self._budgets.setdefault((record.scope, record.scope_id), {})[record.id] = record

    def _forget_answers(self) -> None:
        # Principals, and what is kept by them, tell by it that they are of before.
        self.generation += 1
        self._targets.clear()
        self._target_bounds.clear()

    # Asked by requests

    def principal(self, credential: bytes) -> Principal:
        """Return who holds this gateway key. Refusal: nobody, or not now. Expiry is the caller's to check."""
        principal = self._principals.get(credential)
        if principal is None or principal.generation != self.generation:
            self._principals.pop(credential, None)
            principal = self._find_principal(credential)
            _keep(self._principals, credential, principal, at_most=_MAX_KEPT_CREDENTIALS)
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
        return self._principal_of(key)

    def _principal_of(self, key: Key) -> Principal:
        if key.revoked_at_us is not None:
            raise Refusal("key_revoked", "This key was revoked. Ask for a new one.")
        if not key.enabled:
            raise Refusal("key_disabled", "This key is disabled. Ask whoever gave it out.")
        scopes = [Scoped("key", key.id, "this key", key.limits)]
        end_user_limits = NO_LIMITS
        for noun, record_id in (("team", key.team), ("department", key.department), ("tenant", key.tenant)):
            if record_id is None:
                continue
            owner = self._records[noun].get(record_id)
            if owner is None:
                raise Refusal("dependency_unavailable", f"The gateway does not know this key's {noun} yet. Try again.")
            if not owner.enabled:
                raise Refusal("key_disabled", f"The {noun} of this key is disabled. Ask whoever gave it out.")
            if isinstance(owner, (Team, Department, Tenant)):
                scopes.append(Scoped(noun, owner.id, f"the {noun} {owner.name!r}", owner.limits))
            if isinstance(owner, Tenant):
                end_user_limits = owner.end_user_limits
        return Principal(key, tuple(scopes), end_user_limits, self.generation)

    def bounds(self, principal: Principal, end_user: str | None, at_us: int) -> Bounds:
        """Return the limits on a caller's request that starts at `at_us`; `end_user` is a pseudonym."""
        limits = principal.end_user_limits
        if limits is not None and end_user is not None:
            return self._bounds_of_end_user(principal, end_user, limits, at_us)
        bounds = principal.bounds
        if bounds is None or not bounds.since_us <= at_us < bounds.until_us:
            bounds = self._limit_finder.bounds(principal.scopes, self._budgets, principal.tenant, at_us)
            principal.bounds = bounds
        return bounds

    def _bounds_of_end_user(self, principal: Principal, end_user: str, limits: Limits, at_us: int) -> Bounds:
        kept = self._end_user_bounds
        bounds = kept.get((principal, end_user))
        if bounds is None or not bounds.since_us <= at_us < bounds.until_us:
            user = Scoped("end_user", f"{principal.tenant}:{end_user}", "this end user", limits)
            bounds = self._limit_finder.bounds((*principal.scopes, user), self._budgets, principal.tenant, at_us)
            _keep(kept, (principal, end_user), bounds, at_most=_MAX_KEPT_END_USERS)
        return bounds

    def target_bounds(self, target: Target, at_us: int) -> Bounds:
        """Return the limits on a target's provider and model, for an attempt of a request that started at `at_us`."""
        bounds = self._target_bounds.get(target.model_id)
        if bounds is None or not bounds.since_us <= at_us < bounds.until_us:
            model, provider = (
                self._records["model"].get(target.model_id),
                self._records["provider"].get(target.provider_id),
            )
            scopes = [
                Scoped(scope, record.id, f"the {scope} {record.name!r}", record.limits)
                for scope, record in (("provider", provider), ("model", model))
                if isinstance(record, (Provider, Model))
            ]
            tenant = provider.tenant if isinstance(provider, Provider) else None
            bounds = self._limit_finder.bounds(scopes, self._budgets, tenant, at_us)
            self._target_bounds[target.model_id] = bounds
        return bounds

    def _is_limited(self, model: Model, provider: Provider) -> bool:
        has_budget = ("model", model.id) in self._budgets or ("provider", provider.id) in self._budgets
        return has_budget or not model.limits == provider.limits == NO_LIMITS

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
                is_limited = self._is_limited(model, provider)
                target = resolve_target(model, provider, self._pools, self._key_ring, is_limited=is_limited)
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


def _keep(kept: dict[_Name, _Entry], name: _Name, entry: _Entry, *, at_most: int) -> None:
    """Keep an entry in place of the oldest, one at a time: dropping all of them would hold the loop."""
    if len(kept) >= at_most and name not in kept:
        del kept[next(iter(kept))]
    kept[name] = entry


def _drop(index: dict[_Place, dict[str, _Entry]], place: _Place, record_id: str) -> None:
    entries = index[place]
    entries.pop(record_id, None)
    if not entries:
        del index[place]


def allows_model(key: Key, alias: str) -> bool:
    """Tell whether a key may call an alias; a pattern that ends with `*` allows every rest."""
    if key.allowed_models is None:
        return True
    return any(
        alias.startswith(pattern[:-1]) if pattern.endswith("*") else alias == pattern for pattern in key.allowed_models
    )
