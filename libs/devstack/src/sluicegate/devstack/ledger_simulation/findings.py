"""What the checks of a run saw."""

from dataclasses import dataclass, field


@dataclass
class Findings:
    """Violations by rule, and how far limits were exceeded."""

    violations: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    # By how much each meter went above its limit at most, and how much was allowed then; both in percent of the limit.
    overspent_percent: dict[str, tuple[float, float]] = field(default_factory=dict)
    looks: int = 0

    def violated(self, rule: str, what: str) -> None:
        """Count a violation and remember the first of its kind."""
        self.violations[rule] = self.violations.get(rule, 0) + 1
        self.first.setdefault(rule, what)
