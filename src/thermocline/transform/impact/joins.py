"""What a SELECT reads from, in the order in which the rule for joins takes it.

Inner joins may be taken in any order, so the sources that they alone connect form a core with one
pool of conditions. What is joined after them (outer, semi and anti joins, and inner joins that
depend on those) keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.errors import Unsafe

_ALIKE = {"integer", "text", "date", "timestamp", "timestamptz", "boolean"}
"""Kinds of values of which equal ones are one value, whichever side they are taken from."""


@dataclass(frozen=True)
class Source:
    """One source of a SELECT under its alias; `side` is LEFT, SEMI or ANTI, or empty for inner."""

    alias: str
    node: exp.Expr
    side: str = ""
    on: tuple[exp.Expr, ...] = ()

    def with_node(self, node: exp.Expr) -> Source:
        """Something else under the same alias."""
        return replace(self, node=node)

    @property
    def needs(self) -> set[str]:
        """The aliases without which it cannot be read: those of what it unnests."""
        return aliases(self.node) if isinstance(self.node, exp.Unnest) else set()


class Equality(NamedTuple):
    """A condition that an expression over joined rows equals one over the source to be joined."""

    here: exp.Expr
    there: exp.Expr


@dataclass(frozen=True)
class Conjunct:
    """One of several conditions that must all hold."""

    node: exp.Expr

    @property
    def aliases(self) -> set[str]:
        """The sources that it mentions."""
        return aliases(self.node)

    def equality(self, joined: Sequence[Source], source: Source) -> Equality | None:
        """How it equates joined rows with those of a source, if it does."""
        if not isinstance(self.node, exp.EQ | exp.NullSafeEQ):
            return None
        here = {each.alias for each in joined}
        for one, other in ((self.node.left, self.node.right), (self.node.right, self.node.left)):
            if aliases(other) == {source.alias} and aliases(one) and aliases(one) <= here:
                return Equality(one, other)
        return None


@dataclass(frozen=True)
class From:
    """The sources of a SELECT, and its conditions."""

    core: tuple[Source, ...]
    after: tuple[Source, ...]
    on: tuple[Conjunct, ...]
    """The conditions by which the core is joined."""
    where: tuple[Conjunct, ...]

    def base_of(self, values: Sequence[exp.Expr]) -> tuple[Source | None, list[exp.Expr]]:
        """The one source that supplies the values, by itself or through equalities.

        None if it takes several of the core. What is joined later may supply nothing: a partner
        that comes or goes would move rows from one value to another.
        """
        supply = set[str]().union(*(aliases(value) for value in values))
        if not supply <= {source.alias for source in self.core}:
            raise Unsafe("an outer join that may supply the partition or key itself")
        tables = [s for s in self.core if not isinstance(s.node, exp.Unnest)]
        for source in sorted(tables, key=lambda each: each.alias not in supply):
            others = [each for each in self.core if each is not source]
            moved = moved_to(source, others, self.pool(self.core), values)
            if moved is not None:
                return source, moved
        return None, list(values)

    def core_after(self, base: Source) -> Iterator[Source]:
        """The others of the core, each after something that a condition connects it with."""
        joined, left = {base.alias}, [each for each in self.core if each is not base]
        while left:
            ready = [each for each in left if each.needs <= joined]
            if not ready:
                raise Unsafe("UNNEST of what is joined after it")
            ready.sort(key=lambda each: not self._connected(each, joined))
            yield ready[0]
            joined.add(ready[0].alias)
            left.remove(ready[0])

    def _connected(self, source: Source, joined: set[str]) -> bool:
        return isinstance(source.node, exp.Unnest) or any(
            source.alias in each.aliases and each.aliases & joined
            for each in (*self.on, *self.where)
        )

    def pool(self, joined: Sequence[Source]) -> list[Conjunct]:
        """The conditions that rows of these sources must meet to be in the result."""
        known = {source.alias for source in joined}
        return [each for each in (*self.on, *self.where) if each.aliases <= known]

    def conditions(self, joined: Sequence[Source], source: Source) -> list[Conjunct]:
        """The conditions under which a row of a source counts for a joined row."""
        known = {each.alias for each in joined} | {source.alias}
        own = [Conjunct(node) for node in source.on]
        if any(not each.aliases <= known for each in own):
            raise Unsafe("a join condition on what is joined later")
        if source.side:
            return own  # the WHERE sees the rows that found nothing, too
        pool = [each for each in self.pool([*joined, source]) if source.alias in each.aliases]
        return pool if source in self.core else [*own, *pool]

    def relation(self, joined: Sequence[Source]) -> list[exp.Expr]:
        """The joined sources as a FROM and its joins; `pool` goes into the WHERE."""
        first, *others = joined
        return [first.node.copy(), *(_join(each) for each in others)]


def _join(source: Source) -> exp.Join:
    if not source.side:
        return exp.Join(this=source.node.copy(), kind="CROSS")
    on = exp.and_(*(node.copy() for node in source.on), copy=False)
    word = "side" if source.side == "LEFT" else "kind"
    return exp.Join(this=source.node.copy(), on=on, **{word: source.side})


def shape_of(select: exp.Select) -> From:
    """Take apart what a SELECT reads from; raise Unsafe for a join without a rule."""
    first = select.args.get("from_")
    if first is None:
        raise Unsafe("a SELECT without a FROM")
    found = [Source(_alias(first.this), first.this), *map(_source, select.args.get("joins") or ())]
    if len(found) > 1 and found[1].side == "RIGHT":
        found[0], found[1] = replace(found[1], side="", on=()), replace(
            found[0], side="LEFT", on=found[1].on
        )  # fmt: skip
    core, after, on = [found[0]], list[Source](), list[Conjunct]()
    for source in found[1:]:
        if source.side in {"RIGHT", "FULL"}:
            raise Unsafe(f"a {source.side} JOIN")
        inside = {each.alias for each in core} | {source.alias}
        needed = source.needs.union(*(aliases(node) for node in source.on))
        if source.side == "" and needed <= inside:
            core.append(source)
            on += [Conjunct(node) for node in source.on]
        elif isinstance(source.node, exp.Unnest):
            raise Unsafe("UNNEST of what an outer join may supply")
        else:
            after.append(source)
    where = select.args.get("where")
    conditions = conjuncts(where.this) if where is not None else []
    return From(tuple(core), tuple(after), tuple(on), tuple(map(Conjunct, conditions)))


def _source(join: exp.Join) -> Source:
    words = [word for word in (join.kind, join.side) if word in {"SEMI", "ANTI"}]
    side = words[0] if words else join.side
    on = join.args.get("on")
    return Source(_alias(join.this), join.this, side, tuple(conjuncts(on)) if on else ())


def _alias(node: exp.Expr) -> str:
    return str(node.alias_or_name).lower()


def aliases(node: exp.Expr) -> set[str]:
    """The sources whose columns an expression reads."""
    return {column.table.lower() for column in node.find_all(exp.Column)}


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND combines."""
    node = condition.unnest()
    if isinstance(node, exp.And):
        return [*conjuncts(node.left), *conjuncts(node.right)]
    if isinstance(node, exp.Boolean) and node.this:
        return []
    return [node]


def text(node: exp.Expr) -> str:
    """An expression's text; names are in one case already, and letters in texts keep theirs."""
    return node.sql("duckdb", comments=False)


def moved_to(
    source: Source,
    joined: Sequence[Source],
    conditions: Sequence[Conjunct],
    values: Sequence[exp.Expr],
) -> list[exp.Expr] | None:
    """The values as expressions over one source, by equality with the joined rows; None if not."""
    same: dict[str, exp.Expr] = {}
    for condition in conditions:
        pair = condition.equality(joined, source)
        if pair and family(pair.here) == family(pair.there) and family(pair.here) in _ALIKE:
            same.setdefault(text(pair.here), pair.there)
    moved = [_swapped(value, same) for value in values]
    return moved if all(aliases(value) <= {source.alias} for value in moved) else None


def _swapped(value: exp.Expr, same: dict[str, exp.Expr]) -> exp.Expr:
    def swap(node: exp.Expr) -> exp.Expr:
        found = same.get(text(node)) if aliases(node) else None
        return node if found is None else found.copy()

    return value.copy().transform(swap, copy=False)
