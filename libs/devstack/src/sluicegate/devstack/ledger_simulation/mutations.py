"""Each rule of the protocol taken out in turn: if no check fails then, the rule is not needed, or not tested.

A rule is taken out of the text of the script or method that holds it. A text that does not occur exactly once is an
error: a mutation that no longer fits is not taken for one that nobody noticed.

Not here, because nothing of this kind could notice: that a watermark never falls (a lower one makes the auditor wait),
that an old answer about past spend is thrown away (another process has seeded by then), that a failed call gives its
settlements their age back (it is said again before the watermark counts), and what is there for cost alone, such as 4 ×
largest, 1/64 of the due, the part of extra leases in what is left, or that what comes back to a scarce meter goes back
at once rather than half a second later.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sluicegate.devstack.ledger_simulation.run import run
from sluicegate.devstack.ledger_simulation.scenarios import named
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.store import Scripts
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter
from sluicegate.ledger.pump import Pump

Edit = tuple[str, str]  # what stands there, and what in its place


@dataclass(frozen=True)
class Mutation:
    """A rule, how to take it out, and the scenarios in which that should show."""

    rule: str
    scenarios: Sequence[str]
    sync: Sequence[Edit] = ()
    audit: Sequence[Edit] = ()
    methods: Sequence[tuple[type, str, Sequence[Edit]]] = ()
    rarely_met: str = ""  # why a few runs may not notice

    def scripts(self) -> Scripts:
        """Return the scripts without the rule."""
        usual = Scripts()
        return replace(usual, sync=_edited(usual.sync, *self.sync), audit=_edited(usual.audit, *self.audit))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Take the rule out of the library for a while."""
        originals = [(owner, name, inspect.getattr_static(owner, name)) for owner, name, _ in self.methods]
        try:
            for owner, name, edits in self.methods:
                setattr(owner, name, _rewritten(getattr(owner, name), edits))
            yield
        finally:
            for owner, name, original in reversed(originals):
                setattr(owner, name, original)


def _edited(text: str, *edits: Edit) -> str:
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"a mutation does not fit any more: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    return text


def _rewritten(method: Callable[..., Any], edits: Sequence[Edit]) -> Any:
    source = _edited(textwrap.dedent(inspect.getsource(method)), *edits)
    names: dict[str, Any] = {}
    exec(compile(source, f"<{method.__qualname__} without a rule>", "exec"), method.__globals__, names)  # noqa: S102
    return names[method.__name__]


NETWORK = ("late messages", "crashes, pauses, bad network")
LOSS = ("flushes", "failovers", "everything")
DEATH = ("crashes", "lagging Postgres", "crashes, pauses, bad network")

LAGGING = ("270 meters, partitions, lagging Postgres, 12 auditors",)
AUDITED = ("270 meters, far away, bad network, failovers, 12 auditors",)

IN_SCRIPTS: tuple[Mutation, ...] = (
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
        LOSS,
        sync=[("base = base + mine_settled\n", "base = base\n")],
    ),
    Mutation(
        "leaving folds what was settled",
        ("calm", "lost messages"),
        sync=[("if is_sum and settled ~= 0 then", "if false then")],
    ),
    Mutation(
        "t: the auditor corrects downwards only a meter that has been quiet",
        LAGGING,
        sync=[("if is_sum and settled ~= mine_settled then", "if false then")],
        rarely_met="a meter must be left just after a long request, with Postgres some seconds behind",
    ),
    Mutation(
        "the auditor counts a record only if its watermark is young",
        ("lagging Postgres", "calm", "lost messages"),
        audit=[("if mark and mark >= read_at + SETTLED_MARGIN then", "if mark then")],
    ),
    Mutation(
        "the auditor ends only a dead or empty record",
        ("pauses", "partitions"),
        audit=[
            ("elseif not last_seen or last_seen + TTL <= now or tonumber(h) == 0 then", "else"),
            ("    else\n      return {'BUSY', 0, 0, 0}\n", ""),
        ],
    ),
    Mutation(
        "the auditor corrects downwards only when the records are complete",
        LAGGING,
        audit=[("and is_complete then", "then")],
    ),
)

IN_PROCESSES: tuple[Mutation, ...] = (
    Mutation(
        "after LOST, what was leased is in doubt",
        LOSS,
        methods=[(Pump, "_doubt_after_loss", [("self._doubt(meter)", "self.mark_dirty(meter)")])],
    ),
    Mutation(
        "after LOST, the watermark waits",
        AUDITED,
        methods=[(Pump, "_doubt_after_loss", [('if meter.is_joined and meter.kind == "sum":', "if False:")])],
        rarely_met="a process must be cut off during a failover, and audited within its first calls after",
    ),
    Mutation(
        "after LOST, a process counts from what the store knows",
        LOSS,
        methods=[(Pump, "_doubt_after_loss", [("self._acked = last_known", "pass")])],
    ),
    Mutation(
        "after a long silence, what was leased is in doubt",
        ("pauses", "outages", "crashes, pauses, bad network"),
        methods=[(Pump, "_doubt_silent_leases", [("self._doubt(meter)", "pass")])],
    ),
    Mutation(
        "a lease is good for ten seconds after a call",
        ("pauses", "pauses, far away, far from limits", "partitions"),
        methods=[(Ledger, "take", [("if now >= pump.valid_until:", "if False:")])],
    ),
    Mutation(
        "these seconds count from when the call was sent",
        ("pauses, far away, far from limits", "crashes, pauses, bad network"),
        methods=[(Pump, "_read", [("self.valid_until = sent_at + VALID_S", "self.valid_until = now + VALID_S")])],
        rarely_met="an answer later than a second is none, and a process that stood still finds its call timed out",
    ),
    Mutation(
        "W says what was really sent",
        AUDITED,
        methods=[
            (
                Pump,
                "_watermark_ms",
                [
                    (
                        "since = now if oldest is None or oldest.unsent_since is None else oldest.unsent_since",
                        "since = now",
                    )
                ],
            )
        ],
    ),
    Mutation(
        "what a failed call said is said again at once",
        AUDITED,
        methods=[(Pump, "_unsend", [("self.mark_dirty(meter)", "pass")])],
    ),
    Mutation(
        "REJOIN: what was settled is dropped",
        ("pauses", *LOSS),
        methods=[(Pump, "_end_lease", [("meter.settled = meter.synced = 0", "pass")])],
    ),
    Mutation(
        "REJOIN: what is reserved is said again",
        ("pauses", *LOSS),
        methods=[(Pump, "_read_rejoin", [("if meter.held:", "if False:")])],
    ),
    Mutation(
        "giving back lowers A before the call leaves",
        ("calm", "late messages", "lost messages"),
        methods=[
            (
                Pump,
                "_write",
                [
                    (
                        "is_unwanted = not meter.waiters and (meter.is_scarce or is_idle)",
                        "is_unwanted, is_kept = False, not meter.waiters and (meter.is_scarce or is_idle)",
                    ),
                    ("hold=meter.held,", "hold=meter.held - (meter.spare if is_kept else 0),"),
                ],
            )
        ],
    ),
    Mutation(
        "above its limit, a process keeps nothing spare",
        ("lowered limits", "pauses", "flushes"),
        methods=[(Pump, "_read_lease", [("if answer.left < 0 and meter.spare:", "if False:")])],
    ),
    Mutation(
        "a debt is held at once",
        ("calm",),
        methods=[(Pump, "owe", [("meter.held -= meter.spare", "pass")])],
    ),
    Mutation(
        "a rate's lease outlives its minute",
        ("rates, crashes, partitions, lost messages",),
        methods=[(Meter, "__init__", [("TTL_S[resource] * 1000", '20_000 if resource != "budget" else 60_000')])],
    ),
    Mutation(
        "what was admitted comes back after a whole minute",
        ("calm, at rates",),
        methods=[(Ledger, "_turn", [("< self._slot_number - MINUTE_SLOTS", "< self._slot_number - MINUTE_SLOTS + 2")])],
    ),
    Mutation(
        "refused only by an answer to a call that was sent after the request came",
        ("calm, far from limits", "calm, 2 000 meters"),
        methods=[(Pump, "_serve", [("order > waiter.calls_before", "True")])],
        rarely_met="what is left is compared as well",
    ),
    Mutation(
        "refused only by an answer that held the very meter",
        ("calm, far from limits", "calm, 2 000 meters"),
        methods=[(Pump, "_refuse", [("meter in answered and ", "")])],
    ),
    Mutation(
        "after LOST, what has joined since joins anew",
        ("failovers", "everything"),
        methods=[
            (Pump, "_doubt_after_loss", [("if meter.is_joined and meter.joined_by > last_known > 0:", "if False:")])
        ],
    ),
    Mutation(
        "what is spare beyond need goes back",
        ("calm, shifting load",),
        methods=[
            (Pump, "_has_surplus", [("if meter.spare <= SURPLUS_TIMES", "if True or meter.spare <= SURPLUS_TIMES")])
        ],
    ),
)

ALL = IN_SCRIPTS + IN_PROCESSES


def noticed(mutation: Mutation, server: Server, seeds: Iterable[int]) -> str:
    """Return what noticed that the rule is missing: the check, the scenario and the seed. Empty if nothing did."""
    with mutation.applied():
        for seed in seeds:
            for name in mutation.scenarios:
                found = run(server, named(name), seed, scripts=mutation.scripts(), stops_early=True).findings.violations
                if found:
                    return f"{next(iter(found))} ({name}, seed {seed})"
    return ""
