"""Where the meters are shared: three scripts on Valkey or Redis. Says what a call holds, sends it, reads the answer.

What a call means is the pump's business. A call is never retried here: it may have run, and only the next one, with
fresh absolute values and a new number, is right whatever happened (redis-py by default repeats ten times and took 4.5 s
over one call of 50 ms).
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from sluicegate.ledger.meters import Kind

CALL_TIMEOUT_S: Final = 1.0
MAX_CLOCK_SKEW_S: Final = 1.0


def _script(name: str) -> str:
    return files("sluicegate.ledger").joinpath(name).read_text(encoding="utf-8")


SYNC_SCRIPT: Final = _script("sync.lua")
SEED_SCRIPT: Final = _script("seed.lua")
AUDIT_SCRIPT: Final = _script("audit.lua")


class StoreError(Exception):
    """The call was not answered, or not understood. It may have run."""


class Line(NamedTuple):
    """One meter in a call. `hold`: reserved and spare; the other letters are those of `ledger.py`."""

    name: str
    kind: Kind
    limit: int
    zero_from_ms: int
    is_joined: bool
    settled: int
    hold: int
    need: int
    want: int
    ttl_ms: int
    leaves: bool
    expire_at_ms: int


class Call(NamedTuple):
    """What a process says to the meters of one tag."""

    process: str
    number: int
    acked: int
    watermark_ms: int
    lines: Sequence[Line]


class Answer(NamedTuple):
    """What the store says about one meter: its share of the reply, in the order of the lines."""

    code: Literal["OK", "REJOIN", "MISSING"]
    grant: int
    spent: int
    left: int
    members: int


class Reply(NamedTuple):
    """The answer to a call. `number`: the server's time in ms (OK, STALE) or the last call it knows (LOST)."""

    status: Literal["OK", "STALE", "LOST"]
    number: int
    answers: Sequence[Answer] = ()


class Seed(NamedTuple):
    """What was spent on a budget meter before the store lost, or first met, it."""

    name: str
    spent_nano_usd: int
    expire_at_ms: int


class Audit(NamedTuple):
    """What an audit found. `total`: spent as the meter says now; `kept`: records of processes that go on."""

    state: Literal["OK", "BUSY", "MISSING"]
    total: int
    correction: int
    kept: int


class MeterStore(Protocol):
    """What the ledger and the auditor need. Each call ends within about a second, with `StoreError` at worst."""

    async def sync(self, tag: str, call: Call) -> Reply:
        """Run one call of a process."""
        ...

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> None:
        """Give meters without a base theirs; the first seed of a meter wins."""
        ...

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        """Compare a budget meter with what the records said at the server's time `read_at_ms`, and repair it."""
        ...

    async def now_ms(self, tag: str) -> int:
        """Return the time of the server that holds the meters of `tag`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def born_key(tag: str) -> str:
    """Return the key that says since when the store has kept the meters of `tag`."""
    return f"sg:{{{tag}}}:born"


def alive_key(tag: str) -> str:
    """Return the key of the processes' lives."""
    return f"sg:{{{tag}}}:alive"


def sync_arguments(tag: str, call: Call) -> tuple[list[str], list[str | int]]:
    """Return the keys and arguments of `sync.lua`."""
    keys = [born_key(tag), alive_key(tag)]
    arguments: list[str | int] = [call.process, call.number, call.acked, call.watermark_ms]
    for line in call.lines:
        keys.append(line.name)
        arguments += (
            line.kind,
            line.limit,
            line.zero_from_ms,
            int(line.is_joined),
            line.settled,
            line.hold,
            line.need,
            line.want,
            line.ttl_ms,
            int(line.leaves),
            line.expire_at_ms,
        )
    return keys, arguments


def read_sync(raw: Sequence[Any]) -> Reply:
    """Return what `sync.lua` answered."""
    status, number, *rest = raw
    numbers = iter(rest)
    answers = [Answer(_text(code), *values) for code, *values in zip(*[numbers] * 5, strict=True)]
    return Reply(_text(status), int(number), answers)


def seed_arguments(tag: str, seeds: Sequence[Seed]) -> tuple[list[str], list[str | int]]:
    """Return the keys and arguments of `seed.lua`."""
    keys = [born_key(tag), *(seed.name for seed in seeds)]
    return keys, list(itertools.chain.from_iterable((seed.spent_nano_usd, seed.expire_at_ms) for seed in seeds))


def audit_arguments(
    tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool
) -> tuple[list[str], list[str | int]]:
    """Return the keys and arguments of `audit.lua`."""
    return [alive_key(tag), name], [recorded, read_at_ms, int(is_complete)]


def read_audit(raw: Sequence[Any]) -> Audit:
    """Return what `audit.lua` answered."""
    state, total, correction, kept = raw
    return Audit(_text(state), int(total), int(correction), int(kept))


class RedisMeterStore:
    """Valkey or Redis. One connection of its own carries the pump's calls, so that nothing else delays them."""

    def __init__(self, url: str, *, is_cluster: bool = False) -> None:
        retry = Retry(NoBackoff(), 0)
        limits: dict[str, Any] = {"socket_timeout": CALL_TIMEOUT_S, "socket_connect_timeout": CALL_TIMEOUT_S}
        self._sync: Redis | RedisCluster
        self._other: Redis | RedisCluster
        if is_cluster:
            self._sync = self._other = RedisCluster.from_url(url, retry=retry, **limits)
        else:
            # A connection begins within a call's second, so it must not take more round trips than it needs: those
            # about the library's version and a server's maintenance kept a server 200 ms away from ever answering.
            limits |= {"driver_info": None, "maint_notifications_config": MaintNotificationsConfig(enabled=False)}
            self._sync = Redis.from_url(url, retry=retry, single_connection_client=True, **limits)
            self._other = Redis.from_url(url, retry=retry, **limits)
        self._is_cluster = is_cluster

    async def sync(self, tag: str, call: Call) -> Reply:
        return read_sync(await self._run(self._sync, SYNC_SCRIPT, *sync_arguments(tag, call)))

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> None:
        await self._run(self._other, SEED_SCRIPT, *seed_arguments(tag, seeds))

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        arguments = audit_arguments(tag, name, recorded, read_at_ms, is_complete=is_complete)
        return read_audit(await self._run(self._other, AUDIT_SCRIPT, *arguments))

    async def now_ms(self, tag: str) -> int:
        # A script, because only scripts go where a tag's keys are.
        now = await self._run(self._other, "return redis.call('TIME')", [alive_key(tag)], [])
        return int(now[0]) * 1000 + int(now[1]) // 1000

    async def problems(self) -> list[str]:
        """Return what of this server would break the ledger's promises, each in a sentence. Raises `StoreError`.

        Asked at start, it also makes the connections, so that the first request does not wait for them.
        """
        found = []
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._sync.ping()
                config = await cast(
                    Awaitable[dict[str, str]],
                    self._other.config_get("maxmemory-policy", "appendonly", "appendfsync"),
                )
        except ResponseError as error:  # managed servers keep CONFIG to themselves
            config = {}
            found.append(f"its settings cannot be read: {error}")
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error
        policy = config.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            found.append(f"maxmemory-policy is {policy}, not noeviction: an evicted meter reads as nothing spent")
        if config.get("appendonly", "yes") != "yes":
            found.append("appendonly is off: a restart forgets every meter, and each budget must be asked for again")
        elif config.get("appendfsync") == "no":
            found.append("appendfsync is no: a crash forgets more than the last second")
        skew_s = abs(await self.now_ms("all") / 1000 - time.time())
        if skew_s >= MAX_CLOCK_SKEW_S:
            found.append(
                f"its clock differs by {skew_s:.1f} s from this machine's: periods would begin at another time"
            )
        return found

    async def close(self) -> None:
        await self._sync.aclose()
        await self._other.aclose()

    async def _run(
        self, client: "Redis | RedisCluster", script: str, keys: Sequence[str], arguments: Sequence[str | int]
    ) -> Any:
        """Run a script, known to the server or not. Out of time, the connection is closed: the answer may yet come."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                try:
                    return await client.evalsha(_sha(script), len(keys), *keys, *arguments)
                except NoScriptError:
                    return await client.eval(script, len(keys), *keys, *arguments)
        except Exception as error:
            # Beside its own errors redis-py lets through what a lost connection makes of its insides. Whatever it
            # is, the call has no answer.
            raise StoreError(f"{type(error).__name__}: {error}") from error


_shas: dict[str, str] = {}


def _sha(script: str) -> str:
    digest = _shas.get(script)
    if digest is None:
        digest = _shas[script] = sha1(script.encode(), usedforsecurity=False).hexdigest()
    return digest


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
