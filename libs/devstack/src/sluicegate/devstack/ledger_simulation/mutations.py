"""Each rule of the protocol taken out in turn: if no check fails then, the rule is not needed, or not tested.

A rule of a script is taken out of its text; a rule of the library by another method in place of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sluicegate.devstack.ledger_simulation.run import run
from sluicegate.devstack.ledger_simulation.scenarios import named
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.store import Scripts

Patch = tuple[Any, str, Callable[[Any], Any]]  # whose, its name, and what replaces the original


@dataclass(frozen=True)
class Mutation:
    """A rule, how to take it out, and the scenarios in which that should show."""

    rule: str
    scenarios: Sequence[str]
    sync: Sequence[tuple[str, str]] = ()
    audit: Sequence[tuple[str, str]] = ()
    patches: Sequence[Patch] = ()

    def scripts(self) -> Scripts:
        """Return the scripts without the rule."""
        usual = Scripts()
        return replace(usual, sync=_without(usual.sync, self.sync), audit=_without(usual.audit, self.audit))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Take the rule out of the library for a while."""
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in self.patches]
        try:
            for owner, name, make in self.patches:
                setattr(owner, name, make(getattr(owner, name)))
            yield
        finally:
            for owner, name, original in reversed(originals):
                setattr(owner, name, original)


def _without(text: str, edits: Sequence[tuple[str, str]]) -> str:
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"a mutation does not fit the script any more: {old!r}")
        text = text.replace(old, new)
    return text


NETWORK = ("late messages", "crashes, pauses, bad network")
LOSS = ("flushes", "failovers", "everything")
DEATH = ("crashes", "lagging Postgres", "crashes, pauses, bad network")

ALL: tuple[Mutation, ...] = (
    Mutation(
        "STALE: a delayed call never undoes a newer one",
        NETWORK,
        sync=[("if call <= known_call then return {'STALE', now} end", "")],
    ),
    Mutation(
        "LOST: a process hears that what it wrote is gone",
        LOSS,
        sync=[("if acked > known_call then return {'LOST', known_call} end", "")],
    ),
    Mutation(
        "REJOIN: a record that ended is not made again",
        ("pauses", *LOSS),
        sync=[("if joined and not mine_settled then return 'REJOIN', 0, 0, 0, members end", "")],
    ),
    Mutation(
        "what is held already is never cut",
        ("lowered limits", "pauses"),
        sync=[
            (
                "local grant = math.max(0,",
                "if room < 0 then hold = math.max(0, hold + room); room = 0 end\n  local grant = math.max(0,",
            )
        ],
    ),
    Mutation(
        "a dead process's hold on a budget stays until the auditor ends it",
        DEATH,
        sync=[
            (
                "spent, held = spent + tonumber(s), held + tonumber(h)",
                "spent = spent + tonumber(s)\n          if is_live then held = held + tonumber(h) end",
            )
        ],
    ),
    Mutation(
        "a dead process's hold on a capacity ends",
        DEATH,
        sync=[("          redis.call('HDEL', key, name)\n", "          held = held + tonumber(h)\n")],
    ),
    Mutation(
        "a meter without a base is seeded, not begun at zero",
        LOSS,
        sync=[("if zero_from == 0 or born + BORN_MARGIN > zero_from then", "if false then")],
    ),
    Mutation(
        "a lost answer to a join: what was settled under it is folded",
        ("lost messages", *NETWORK),
        sync=[("base = base + mine_settled\n", "base = base\n")],
    ),
    Mutation(
        "leaving folds what was settled",
        ("calm", "lost messages"),
        sync=[("if is_sum and settled ~= 0 then", "if false then")],
    ),
    Mutation(
        "t: the auditor corrects downwards only a meter that has been quiet",
        ("calm", "lagging Postgres", "crashes"),
        sync=[("if is_sum and settled ~= mine_settled then", "if false then")],
    ),
    Mutation(
        "a watermark never falls",
        ("late messages", "lost messages", "everything"),
        sync=[("math.max(watermark, known_watermark)", "watermark")],
    ),
    Mutation(
        "extra leases are a part of what is left, by the number of members",
        ("calm",),
        sync=[("math.floor((room - grant) / (2 * members))", "math.max(0, room - grant)")],
    ),
    Mutation(
        "the auditor counts a record only if its watermark is young",
        ("lagging Postgres", "calm", "lost messages"),
        audit=[("if mark and mark >= read_at + SETTLED_MARGIN then", "if mark then")],
    ),
    Mutation(
        "the auditor ends only a dead or empty record",
        ("calm", "late messages", "lost messages"),
        audit=[
            ("elseif not last_seen or last_seen + TTL <= now or tonumber(h) == 0 then", "else"),
            ("    else\n      return {'BUSY', 0, 0, 0}\n", ""),
        ],
    ),
    Mutation(
        "the auditor corrects downwards only when the records are complete",
        ("lagging Postgres", "crashes"),
        audit=[("and is_complete then", "then")],
    ),
)


def noticed(mutation: Mutation, server: Server, seeds: Iterable[int]) -> str:
    """Return what noticed that the rule is missing: the check, the scenario and the seed. Empty if nothing did."""
    with mutation.applied():
        for seed in seeds:
            for name in mutation.scenarios:
                found = run(server, named(name), seed, scripts=mutation.scripts(), stops_early=True).findings.violations
                if found:
                    return f"{next(iter(found))} ({name}, seed {seed})"
    return ""
