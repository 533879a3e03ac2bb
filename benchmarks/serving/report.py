"""The results of a run and its goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.serving.load import Heard

HEADINGS = (
    "| | answers | per second | failed | overdue | p50 ms | p95 ms | p99 ms | hot p95 ms "
    "| engines |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


@dataclass(frozen=True)
class Loop:
    """The answers of one loop."""

    name: str
    heard: list[Heard]
    seconds: float

    @property
    def good(self) -> list[Heard]:
        """The answered queries."""
        return [each for each in self.heard if each.status == 200]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.good) / self.seconds

    @property
    def success(self) -> float:
        """The share of answered queries."""
        return len(self.good) / max(len(self.heard), 1)

    def at(self, share: float, *engines: str) -> float:
        """Return the quantile of latencies in milliseconds, of all or of these engines."""
        return quantile(
            (each.seconds * 1000 for each in self.good if not engines or each.engine in engines),
            share,
        )

    @property
    def hot_p95(self) -> float:
        """The p95 of answers from memory, executed or cached."""
        return self.at(0.95, "hot", "cache")

    def complaints(self) -> list[str]:
        """Return the most common errors and their counts."""
        reasons = Counter((each.status, each.why) for each in self.heard if each.status != 200)
        return [f"{self.name}: {n} × {status} {why}" for (status, why), n in reasons.most_common(5)]

    def row(self) -> str:
        """Return a row of the table."""
        engines = Counter(each.engine for each in self.good).most_common()
        counts = ", ".join(f"{engine} {count:,}" for engine, count in engines)
        quantiles = " | ".join(f"{self.at(share):.1f}" for share in (0.5, 0.95, 0.99))
        failed, overdue = len(self.heard) - len(self.good), sum(e.overdue for e in self.good)
        return (
            f"| {self.name} | {len(self.good):,} | {self.rate:.0f} | {failed} | {overdue} "
            f"| {quantiles} | {self.hot_p95:.1f} | {counts} |"
        )


def quantile(values: Iterable[float], share: float) -> float:
    """Return a quantile of values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


@dataclass(frozen=True)
class Goal:
    """A goal, its measured value, and whether it was met."""

    what: str
    reached: str
    met: bool

    def row(self) -> str:
        """Return a row of the table."""
        return f"| {self.what} | {self.reached} | {'yes' if self.met else '**no**'} |"


def at_most(what: str, value: float, limit: float, unit: str) -> Goal:
    """Return a goal with an upper limit."""
    return Goal(f"{what} ≤ {limit:g} {unit}".rstrip(), f"{value:.2f} {unit}", value <= limit)


def at_least(what: str, value: float, limit: float, unit: str) -> Goal:
    """Return a goal with a lower limit."""
    return Goal(f"{what} ≥ {limit:g} {unit}".rstrip(), f"{value:.2f} {unit}", value >= limit)


def printed(goals: Iterable[Goal]) -> str:
    """Return the goals as a table."""
    return "\n".join(("| goal | reached | met |", "|---|---|---|", *(g.row() for g in goals)))
