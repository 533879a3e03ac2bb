"""The FROM clause of a SELECT, in the order that the rule for joins needs.

Inner joins may be evaluated in any order, so sources that only inner joins connect form a core with
one pool of conditions. Later joins (outer, semi and anti joins, and inner joins that depend on
those) keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.unsafe import Unsafe

_COMPARABLE_FAMILIES = {"integer", "text", "date", "timestamp", "timestamptz", "boolean"}
"""Type families in which equal values are identical, so that either side of an equality will do."""


@dataclass(frozen=True)
class JoinSource:
    """One source of a SELECT under its alias; `side` is LEFT, SEMI or ANTI, or empty for inner."""

    alias: str
    node: exp.Expr
    side: str = ""
    on: tuple[exp.Expr, ...] = ()

    def with_node(self, node: exp.Expr) -> JoinSource:
        """Return the source with another node under the same alias."""
        return replace(self, node=node)

    @property
    def required_aliases(self) -> set[str]:
        """The aliases of the sources that it unnests; they must be joined before it."""
        return find_aliases(self.node) if isinstance(self.node, exp.Unnest) else set()


class Equality(NamedTuple):
    """A condition that equates an expression over joined rows with one over the next source."""

    here: exp.Expr
    there: exp.Expr


@dataclass(frozen=True)
class Conjunct:
    """One operand of an AND."""

    node: exp.Expr

    @property
    def aliases(self) -> set[str]:
        """The aliases of the sources that it reads."""
        return find_aliases(self.node)

    def match_equality(self, joined: Sequence[JoinSource], source: JoinSource) -> Equality | None:
        """Return how it equates joined rows with rows of a source; None if it does not."""
        if not isinstance(self.node, exp.EQ | exp.NullSafeEQ):
            return None
        here = {each.alias for each in joined}
        for one, other in ((self.node.left, self.node.right), (self.node.right, self.node.left)):
            if (
                find_aliases(other) == {source.alias}
                and find_aliases(one)
                and find_aliases(one) <= here
            ):
                return Equality(one, other)
        return None


@dataclass(frozen=True)
class FromClause:
    """The sources of a SELECT, and its conditions."""

    core: tuple[JoinSource, ...]
    later: tuple[JoinSource, ...]
    on: tuple[Conjunct, ...]
    """The conditions by which the core is joined."""
    where: tuple[Conjunct, ...]

    def find_base(self, values: Sequence[exp.Expr]) -> tuple[JoinSource | None, list[exp.Expr]]:
        """Return the one source that supplies the values, and the values in its columns.

        Equalities may move values to it. The source is None if several core sources supply the
        values. A later source must not supply any: a join partner that appears or disappears would
        move rows from one value to another.
        """
        supply = set[str]().union(*(find_aliases(value) for value in values))
        if not supply <= {source.alias for source in self.core}:
            raise Unsafe("an outer join that may supply the partition or key itself")
        tables = [s for s in self.core if not isinstance(s.node, exp.Unnest)]
        for source in sorted(tables, key=lambda each: each.alias not in supply):
            others = [each for each in self.core if each is not source]
            moved = move_values(source, others, self.conditions_within(self.core), values)
            if moved is not None:
                return source, moved
        return None, list(values)

    def order_core(self, base: JoinSource) -> Iterator[JoinSource]:
        """Yield the other core sources, each after a source that a condition connects it with."""
        joined, left = {base.alias}, [each for each in self.core if each is not base]
        while left:
            ready = [each for each in left if each.required_aliases <= joined]
            if not ready:
                raise Unsafe("UNNEST of what is joined after it")
            ready.sort(key=lambda each: not self._is_connected(each, joined))
            yield ready[0]
            joined.add(ready[0].alias)
            left.remove(ready[0])

    def _is_connected(self, source: JoinSource, joined: set[str]) -> bool:
        return isinstance(source.node, exp.Unnest) or any(
            source.alias in each.aliases and each.aliases & joined
            for each in (*self.on, *self.where)
        )

    def conditions_within(self, joined: Sequence[JoinSource]) -> list[Conjunct]:
        """Return the conditions that read only these sources."""
        known = {source.alias for source in joined}
        return [each for each in (*self.on, *self.where) if each.aliases <= known]

    def join_conditions(self, joined: Sequence[JoinSource], source: JoinSource) -> list[Conjunct]:
        """Return the conditions under which a row of a source matches a joined row."""
        known = {each.alias for each in joined} | {source.alias}
        own = [Conjunct(node) for node in source.on]
        if any(not each.aliases <= known for each in own):
            raise Unsafe("a join condition on what is joined later")
        if source.side:
            return own  # the WHERE also applies to rows without a match
        pool = [
            each
            for each in self.conditions_within([*joined, source])
            if source.alias in each.aliases
        ]
        return pool if source in self.core else [*own, *pool]

    def relation(self, joined: Sequence[JoinSource]) -> list[exp.Expr]:
        """Return the joined sources as a FROM and its joins; conditions go into the WHERE."""
        first, *others = joined
        return [first.node.copy(), *(_build_join(each) for each in others)]


def _build_join(source: JoinSource) -> exp.Join:
    if not source.side:
        return exp.Join(this=source.node.copy(), kind="CROSS")
    on = exp.and_(*(node.copy() for node in source.on), copy=False)
    word = "side" if source.side == "LEFT" else "kind"
    return exp.Join(this=source.node.copy(), on=on, **{word: source.side})


def parse_from_clause(select: exp.Select) -> FromClause:
    """Parse the FROM clause of a SELECT; raise Unsafe for a join without a rule."""
    first = select.args.get("from_")
    if first is None:
        raise Unsafe("a SELECT without a FROM")
    found = [
        JoinSource(_find_alias(first.this), first.this),
        *map(_parse_join, select.args.get("joins") or ()),
    ]
    if len(found) > 1 and found[1].side == "RIGHT":
        found[0], found[1] = replace(found[1], side="", on=()), replace(
            found[0], side="LEFT", on=found[1].on
        )  # fmt: skip
    core, after, on = [found[0]], list[JoinSource](), list[Conjunct]()
    for source in found[1:]:
        if source.side in {"RIGHT", "FULL"}:
            raise Unsafe(f"a {source.side} JOIN")
        inside = {each.alias for each in core} | {source.alias}
        needed = source.required_aliases.union(*(find_aliases(node) for node in source.on))
        if source.side == "" and needed <= inside:
            core.append(source)
            on += [Conjunct(node) for node in source.on]
        elif isinstance(source.node, exp.Unnest):
            raise Unsafe("UNNEST of what an outer join may supply")
        else:
            after.append(source)
    where = select.args.get("where")
    conditions = split_conjuncts(where.this) if where is not None else []
    return FromClause(tuple(core), tuple(after), tuple(on), tuple(map(Conjunct, conditions)))


def _parse_join(join: exp.Join) -> JoinSource:
    words = [word for word in (join.kind, join.side) if word in {"SEMI", "ANTI"}]
    side = words[0] if words else join.side
    on = join.args.get("on")
    return JoinSource(
        _find_alias(join.this), join.this, side, tuple(split_conjuncts(on)) if on else ()
    )


def _find_alias(node: exp.Expr) -> str:
    return str(node.alias_or_name).lower()


def find_aliases(node: exp.Expr) -> set[str]:
    """Return the aliases of the sources that an expression reads."""
    return {column.table.lower() for column in node.find_all(exp.Column)}


def split_conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Split a condition into the operands of its ANDs."""
    node = condition.unnest()
    if isinstance(node, exp.And):
        return [*split_conjuncts(node.left), *split_conjuncts(node.right)]
    if isinstance(node, exp.Boolean) and node.this:
        return []
    return [node]


def to_sql(node: exp.Expr) -> str:
    """Return an expression's SQL, by which equal expressions compare equal."""
    return node.sql("duckdb", comments=False)


def move_values(
    source: JoinSource,
    joined: Sequence[JoinSource],
    conditions: Sequence[Conjunct],
    values: Sequence[exp.Expr],
) -> list[exp.Expr] | None:
    """Rewrite values over one source, by equalities with the joined rows; None if impossible."""
    same: dict[str, exp.Expr] = {}
    for condition in conditions:
        pair = condition.match_equality(joined, source)
        if (
            pair
            and family(pair.here) == family(pair.there)
            and family(pair.here) in _COMPARABLE_FAMILIES
        ):
            same.setdefault(to_sql(pair.here), pair.there)
    moved = [_substitute(value, same) for value in values]
    return moved if all(find_aliases(value) <= {source.alias} for value in moved) else None


def _substitute(value: exp.Expr, same: dict[str, exp.Expr]) -> exp.Expr:
    def swap(node: exp.Expr) -> exp.Expr:
        found = same.get(to_sql(node)) if find_aliases(node) else None
        return node if found is None else found.copy()

    return value.copy().transform(swap, copy=False)
