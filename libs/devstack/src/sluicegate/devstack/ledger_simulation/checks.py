"""The invariants of the protocol and its bound, looked at again and again while a run goes on.

A meter of the store has a base b and a record (S, H) per process, here V = b + ΣS + ΣH. A process counts S, R and A.
What truly happened is `TrueMeter`. Checked at every look, for the meters something happened to since the last:

- I1  A process whose lease is valid and not in doubt: S + R + A ≤ its (S, H), but for debts on their way.
- I2  b + ΣS is not more than what was truly spent.
- I3  V ≤ limit + allowed excess.  I4 is the same for capacities.
- seed  A base that appears is not less than what was published of the meter some seconds before.
- life  A record that holds something ends only when its process was silent for its time to live, or left; then it does,
        and the process admits nothing by it.
- audit  A correction downwards leaves what had been published when Postgres was read (in `world.py`).
- false  While nothing goes wrong, no limit refuses when three quarters of it are free (in `world.py`).
- bound  At no instant since the last look was more committed than limit + allowed excess.

The allowed excess is a running account. Let U be what is committed and not covered by V: the sum over processes of what
they count beyond their records, and spent money that neither base nor records hold. Nothing is leased while V is at the
limit, so the excess grows only by what joins V unasked: debts, always; and after a fault that made the store forget
(lost data, a record that ended while its process lived or its journal was on the way), by the growth of U, until U is
zero again. Lowering a limit allows the difference. It falls as V and U do.
"""

from typing import TYPE_CHECKING

from sluicegate.devstack.ledger_simulation.truth import WINDOW_S, TrueMeter
from sluicegate.ledger.meters import TTL_S, Meter
from sluicegate.ledger.pump import VALID_S

if TYPE_CHECKING:
    from sluicegate.devstack.ledger_simulation.edge import SimulatedEdge
    from sluicegate.devstack.ledger_simulation.world import World

_EVERY_S = 0.05
_EVERY_S_OF_MANY = 0.2
# An answer is at most two seconds old when it is sent, may be late on its way, and waits for a look.
_SEED_AGE_S = 2.0 + 6.0 + 1.0
_SAID_AGAIN_WITHIN_S = 5.0
_SAID_AGAIN_WITHIN_S_OF_MANY = 60.0  # 32 a call, and a call may take a second and be lost
# The longest time to live, after a last call that may have been late on its way.
_LONGEST_LIFE_S = 80.0 + 6.0 + 1.0

Records = dict[str, tuple[int, int]]


class Checks:
    """Looks at a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        has_few = len(world.truth) < 100
        self.every_s = _EVERY_S if has_few else _EVERY_S_OF_MANY
        self._said_again_within_s = _SAID_AGAIN_WITHIN_S if has_few else _SAID_AGAIN_WITHIN_S_OF_MANY
        self._findings = world.findings
        self._losses = world.server.losses
        self._records: dict[str, Records] = {}
        self._uncovered: dict[str, int] = {}
        self._has_base: set[str] = set()
        self._unsaid_since: dict[tuple[str, str], float] = {}

    def look(self) -> None:
        """Check every meter that was touched since the last look."""
        world = self._world
        names, world.touched = sorted(world.touched), set()
        synced, world.synced = world.synced, set()
        if not names:
            return
        if self._losses != world.server.losses:
            self._losses = world.server.losses
            self._records.clear()
        self._findings.looks += 1
        for name, fields in zip(names, world.server.hashes(names), strict=True):
            base = int(fields.pop("b")) if "b" in fields else None
            fields.pop("t", None)
            records = {process: _record(text) for process, text in fields.items()}
            if name in synced:
                self._note_left_behind(name, records)
            self._look_at(world.truth[name], base, records)

    def _look_at(self, truth: TrueMeter, base: int | None, records: Records) -> None:
        world, name = self._world, truth.name
        truth.forget_before(world.loop.time() - WINDOW_S)
        live = {edge.ledger.process: edge for edge in world.running()}
        self._note_ended(name, records)
        self._note_seed(truth, base)
        base = base or 0

        gaps = 0
        known = 0
        for process, edge in live.items():
            gap, settled = self._gap(edge, name, records.get(process))
            gaps += gap
            known += settled
        of_dead = [record for process, record in records.items() if process not in live]
        held_by_dead = world.held_by_dead[name] = sum(held for _, held in of_dead)
        uncovered = lasting = gaps
        if truth.is_sum:
            unknown = truth.spent - known - base - sum(settled for settled, _ in of_dead)
            uncovered += max(0, unknown - held_by_dead)
            lasting += max(0, unknown)  # a late call of the dead may still give back what covers it

        settled_total = base + sum(settled for settled, _ in records.values())
        total = settled_total + sum(held for _, held in records.values())
        self._allow(truth, uncovered)
        self._judge(truth, settled_total, total)
        if truth.allowed_excess and world.limits_unsettled_until_s.get(name, 0) <= world.loop.time():
            owed = sum(edge.debts(name) for edge in live.values())
            truth.allowed_excess = min(truth.allowed_excess, max(0, total - truth.limit) + max(lasting, owed))
        if not lasting:
            world.faulted.discard(name)
        self._uncovered[name] = uncovered
        self._records[name] = records

    def _gap(self, edge: "SimulatedEdge", name: str, record: tuple[int, int] | None) -> tuple[int, int]:
        """Return what the process counts beyond its record, and what it has settled under it. Checks I1."""
        meter = edge.meters.get(name)
        if meter is None:
            return 0, 0
        is_valid = edge.clock.now() < meter.pump.valid_until
        # Without a record, what was settled is in the base, or lost; and what is spare counts no more when the lease is
        # over.
        held = meter.held if is_valid else meter.taken
        gap = max(0, meter.settled + meter.held - sum(record)) if record else held
        debts = edge.debts(name) if gap else 0
        if gap > debts and meter.is_ok and is_valid and not edge.is_unaware_of_loss:
            at = f"{self._world.loop.time():.2f}"
            self._findings.violated("I1", f"{meter!r} at {at}: {gap} above its record {record}, debts {debts}")
        self._note_unsaid(edge, meter, gap - debts if is_valid else 0)
        return gap, max(meter.settled, record[0]) if record else 0

    def _note_unsaid(self, edge: "SimulatedEdge", meter: Meter, gap: int) -> None:
        """What a process holds without a record is said again by one of its next calls."""
        key = edge.ledger.process, meter.name
        if gap <= 0 or meter.missing_at is not None:
            self._unsaid_since.pop(key, None)
            return
        since = self._unsaid_since.setdefault(key, edge.clock.now())
        if meter.pump.valid_until - VALID_S > since + self._said_again_within_s:
            at = f"{self._world.loop.time():.2f}"
            self._findings.violated("I1", f"{meter!r} at {at}: {gap} are not said to the store")

    def _note_ended(self, name: str, records: Records) -> None:
        """A record is gone though its process never left: what it held and said is uncovered from now on."""
        before = self._records.get(name, {})
        gone = before.keys() - records.keys()
        if not gone:
            return
        now_s = self._world.loop.time()
        for edge in self._world.edges:
            process = edge.ledger.process
            if process not in gone or name in edge.left:
                continue
            self._world.faulted.add(name)
            silent_s = now_s - edge.seen_s
            if now_s - edge.back_s <= self.every_s:  # its record may have ended just before it called again
                silent_s = edge.was_silent_s
            if before[process][1] and silent_s < TTL_S[self._world.specs[name].resource]:
                self._findings.violated(
                    "life", f"{name} at {now_s:.2f}: {before[process]} ended after {silent_s:.2f} s"
                )

    def _note_left_behind(self, name: str, records: Records) -> None:
        """A call finds what a dead process held of a capacity and ends it."""
        died_s = self._world.died_s
        for process in records.keys() & died_s.keys():
            dead_s = self._world.loop.time() - died_s[process]
            if dead_s > _LONGEST_LIFE_S and not self._world.specs[name].is_sum:
                self._findings.violated("life", f"{name} has {records[process]} of a process dead for {dead_s:.2f} s")

    def _note_seed(self, truth: TrueMeter, base: int | None) -> None:
        """A base that appears holds all that was published a few seconds ago."""
        if base is None:
            self._has_base.discard(truth.name)
        elif truth.name not in self._has_base:
            self._has_base.add(truth.name)
            expected = self._world.postgres.published_before(truth.name, self._world.loop.time() - _SEED_AGE_S)
            if base < expected:
                at = f"{self._world.loop.time():.2f}"
                self._findings.violated("seed", f"{truth.name} at {at}: {base}, published {expected}")

    def _allow(self, truth: TrueMeter, uncovered: int) -> None:
        growth = truth.debts
        if truth.name in self._world.faulted:
            growth = max(growth, uncovered - self._uncovered.get(truth.name, 0))
        truth.allowed_excess += growth
        truth.debts = 0

    def _judge(self, truth: TrueMeter, settled_total: int, total: int) -> None:
        bound = truth.limit + truth.allowed_excess
        peak, truth.peak = truth.peak, truth.committed
        now_s = self._world.loop.time()
        if truth.is_sum and settled_total > truth.spent:
            self._findings.violated("I2", f"{truth.name} at {now_s:.2f}: {settled_total} of {truth.spent}")
        if total > bound:
            self._findings.violated(
                "I3" if truth.is_sum else "I4", f"{truth.name} at {now_s:.2f}: {total} above {bound}"
            )
        if peak > bound:
            self._findings.violated("bound", f"{truth.name} at {now_s:.2f}: {peak} above {bound}")
        over_percent = 100 * ((truth.spent if truth.is_sum else peak) - truth.limit) / truth.limit
        if over_percent > self._findings.overspent_percent.get(truth.name, (0, 0))[0]:
            self._findings.overspent_percent[truth.name] = over_percent, 100 * truth.allowed_excess / truth.limit

    def end(self) -> None:
        """Check what must be the case when nothing has happened for some minutes: I5, and meter = Postgres = truth."""
        world = self._world
        live = {edge.ledger.process for edge in world.running()}
        for name, fields in zip(world.truth, world.server.hashes(list(world.truth)), strict=True):
            truth = world.truth[name]
            left = fields.keys() - {"b", "t"}
            if not truth.is_sum:
                left &= live  # what a dead process left on a capacity that nobody uses any more goes with its key
            if left:
                self._findings.violated("I5", f"{name} still has {fields}")
            if not truth.is_sum:
                continue
            if world.postgres.spent(name) != truth.spent:
                self._findings.violated("end", f"{name}: Postgres {world.postgres.spent(name)}, truth {truth.spent}")
            if "b" in fields and int(fields["b"]) != truth.spent:
                self._findings.violated("end", f"{name}: meter {fields['b']}, truth {truth.spent}")
            if "b" not in fields and truth.spent and not world.scenario.has_data_loss:
                self._findings.violated("end", f"{name} is missing")


def _record(text: str) -> tuple[int, int]:
    settled, held = text.split()
    return int(settled), int(held)
