"""Ranges of time at the place where a hot copy begins: on it, and a microsecond to either side."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.integration.serve.awkward import EDGE
from tests.integration.serve.maker.values import Values

TIMED = {
    "silver.by_moment": "moment", "silver.by_local": "local", "silver.by_day": "day",
}  # fmt: skip
"""Tables with the rows of facts that are held from EDGE on, and the column of their time."""
TICK = timedelta(microseconds=1)


class Ranges(Values):
    """Ranges of a table's own time; most begin where its hot copy does, or later."""

    def within(self, column: str, kind: str) -> str:
        """A condition by which only rows from EDGE on are asked for, or sometimes more."""
        if self.chance.random() < 0.1:
            return self._beyond(column, kind)
        later = EDGE + self.pick(timedelta(days=1), timedelta(days=4), timedelta(hours=12))
        start = self.pick(EDGE, EDGE, EDGE, EDGE + TICK, EDGE + timedelta(days=1), EDGE - TICK)
        one, end = self._written(start, kind), self._written(later, kind)
        day, month = self._written(EDGE, "day"), "timestamp '2026-04-01' - interval 1 month"
        return str(self.pick(
            f"{column} >= {one}", f"{column} >= {one}", f"{column} > {one}", f"{one} <= {column}",
            f"{column} >= {one} and {column} < {end}", f"{column} between {one} and {end}",
            f"({column} >= {end} or {column} = {one})", f"{column} in ({one}, {end})",
            f"cast({column} as date) >= {day}", f"date_trunc('day', {column}) >= {day}",
            f"date_trunc('month', {column}) = {day}",
            f"{column} >= {month}",
            f"{column} > {end} and {column} is not null",
        ))  # fmt: skip

    def _beyond(self, column: str, kind: str) -> str:
        """A condition by which rows are asked for that are not in the hot copy."""
        old = self._written(EDGE - self.pick(TICK, timedelta(days=3), timedelta(days=9)), kind)
        new = self._written(EDGE + timedelta(days=1), kind)
        return str(self.pick(
            f"({column} >= {new} or {column} <= {old})", f"{column} in ({old}, {new})",
            f"{column} between {old} and {new}", f"({column} > {new} or {column} is null)",
            f"coalesce({column}, {new}) >= {new}", f"date_trunc('month', {column}) <= {new}",
            f"{column} >= {old} and {column} < {new}", f"{column} < {old}",
            f"not ({column} < {new} and {column} > {old})",
        ))  # fmt: skip

    def _written(self, at: datetime, kind: str) -> str:
        """A moment as a constant that can be compared with a kind of column."""
        clock = at.isoformat(" ")
        hour_east = (at + timedelta(hours=1)).isoformat(" ")
        if kind == "day":
            midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
            return str(self.pick(f"date '{midnight:%Y-%m-%d}'", f"timestamp '{clock}'"))
        if kind == "moment":
            return str(self.pick(f"timestamptz '{clock}+00:00'", f"timestamp '{clock}'",
                                 f"timestamptz '{hour_east}+01:00'"))  # fmt: skip
        return str(self.pick(f"timestamp '{clock}'", f"'{clock}'"))
