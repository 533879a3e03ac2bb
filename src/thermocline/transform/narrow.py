"""Which rows of a source can reach given parts of the target? Decided from the SQL alone.

A model that is asked for a few days of its target should read a few days of its sources. Where
the target's column is a source's column, or the day of one, followed through renames, CTEs and
unions, a row of another day cannot reach the asked parts, and its files need not be opened. Spark
finds that out by itself only where no cast stands between the two.

Reading too much is only slower; reading too little would be wrong. Every doubt reads everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from thermocline.transform import lineage


@dataclass(frozen=True)
class Reach:
    """One mention of a stored table whose column decides which part its rows reach.

    `day` says that the part is the column's day; otherwise it is the column itself.
    """

    reference: exp.Table
    column: str
    day: bool


def reaches(query: exp.Query, target: str) -> list[Reach]:
    """The mentions of stored tables whose rows can be left out by `target`, an output column.

    A CTE that is also used for something else is left whole: its other users need all its rows.
    """
    ctes = list(query.find_all(exp.CTE))
    if len({cte.alias_or_name for cte in ctes}) < len(ctes):
        return []  # one name for two things
    if any(with_.recursive for with_ in query.find_all(exp.With)):
        return []
    search = _Search({cte.alias_or_name: cte.this for cte in ctes})
    search.follow(query, target, day=False)
    used_otherwise = {
        reference.name
        for reference in query.find_all(exp.Table)
        if not reference.db and id(reference) not in search.passed
    }
    sound = {
        id(reach.reference): reach
        for reach, through in search.found
        if not used_otherwise & through and _agreed(reach, search)
    }
    return list(sound.values())


def reach_of(query: exp.Query, reference: exp.Table, target: str) -> Reach | None:
    """How one mention of a table decides the part that its rows reach, if it does.

    Its changed rows then name all parts that they touch, and the query need not be run for it.
    """
    found = (reach for reach in reaches(query, target) if reach.reference is reference)
    return next(found, None)


def _agreed(reach: Reach, search: _Search) -> bool:
    """Whether all ways to a mention agree on the column that decides."""
    same = (other for other, _ in search.found if other.reference is reach.reference)
    return all(other == reach for other in same)


@dataclass
class _Search:
    ctes: dict[str, exp.Expr]
    found: list[tuple[Reach, frozenset[str]]] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)

    def follow(
        self, query: exp.Expr, name: str, *, day: bool, through: frozenset[str] = frozenset()
    ) -> None:
        """Follow one output column of a query down to the stored tables it comes from."""
        if isinstance(query, exp.Subquery):
            self.follow(query.this, name, day=day, through=through)
        elif isinstance(query, exp.Union):
            position = _position(query, name)
            for branch in (query.left, query.right) if position is not None else ():
                names = [projection.alias_or_name for projection in branch.selects]
                self.follow(branch, names[position or 0], day=day, through=through)
        elif isinstance(query, exp.Select):
            self._select(query, name, day, through)

    def _select(self, query: exp.Select, name: str, day: bool, through: frozenset[str]) -> None:
        column, is_day = _plain(query, name)
        if column is None or (day and is_day):
            return
        source = _source(query, column)
        if not isinstance(source, exp.Table):
            if source is not None:
                self.follow(source, column.name, day=day or is_day, through=through)
        elif source.db:
            self.found.append((Reach(source, column.name, day or is_day), through))
        elif source.name in self.ctes:
            self.passed.add(id(source))
            inner = self.ctes[source.name]
            self.follow(inner, column.name, day=day or is_day, through=through | {source.name})


def _position(query: exp.Query, name: str) -> int | None:
    names = [projection.alias_or_name.lower() for projection in query.selects]
    return names.index(name.lower()) if names.count(name.lower()) == 1 else None


def _plain(query: exp.Select, name: str) -> tuple[exp.Column | None, bool]:
    """The column that an output column is, or is the day of."""
    position = _position(query, name)
    if position is None:
        return None, False
    value = query.selects[position].unalias()
    if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
        inner = value.this
        return (inner, True) if isinstance(inner, exp.Column) else (None, False)
    return (value, False) if isinstance(value, exp.Column) else (None, False)


def _source(query: exp.Select, column: exp.Column) -> exp.Expr | None:
    """Where a column of a SELECT comes from; None where its name does not say."""
    if query.args.get("laterals"):
        return None
    sources = lineage.sources(query)
    if not column.table:
        return sources[0] if len(sources) == 1 else None
    named = [s for s in sources if s.alias_or_name.lower() == column.table.lower()]
    return named[0] if len(named) == 1 else None
