"""Random queries by composition: chains of CTEs, each an operator over any of those before it.

Every relation is a list of columns with their kinds, so that filters, cases, groups, windows,
joins, unions and constructs without a rule stand at every level and over every other one.
Names are handed out anew at each level. A seed stands for one query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

DAY, MOMENT, NUMBER, MONEY, TEXT = "date", "timestamptz", "long", "decimal(38,4)", "string"
_SQL = {DAY: "date", MOMENT: "timestamptz", NUMBER: "bigint", MONEY: "decimal(38,4)",
        TEXT: "varchar"}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """Something to select from: a stored table or a CTE, with its columns and their kinds."""

    name: str
    columns: tuple[tuple[str, str], ...]

    def of(self, *kinds: str) -> list[str]:
        """The columns of some kinds."""
        return [name for name, kind in self.columns if kind in kinds]


@dataclass(frozen=True)
class Chain:
    """A query whose column `day`, `at` or `key` names its parts; the others are v0, v1, …"""

    sql: str
    columns: tuple[tuple[str, str], ...]
    """Name and kind; the first one names the parts."""
    by_day: bool = False
    """Whether only the day of the first column counts."""
    keyed: bool = False
    """Whether there is one row for each value of the first column."""


class _Writer:
    """Writes one chain."""

    def __init__(self, random: Random, stored: tuple[Relation, ...], *, wild: bool) -> None:
        self.random = random
        self.wild = wild
        self.made: list[Relation] = list(stored)
        self.ctes: list[str] = []
        self.names = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, *of: str) -> str:
        return self.random.choice(of)

    def source(self) -> Relation:
        """A relation to read: the newest more often than those before it."""
        if len(self.made) > 2 and self.chance(0.6):
            return self.made[-1]
        return self.random.choice(self.made)

    def with_day(self) -> Relation:
        """One that has a day or a moment."""
        return self.random.choice(
            [r for r in self.made[-3:] if r.of(DAY, MOMENT)] or [self.made[0]]
        )

    # Expressions

    def value(self, alias: str, relation: Relation, kind: str) -> str | None:
        """An expression of a kind over a relation's columns; None if it has none for it."""
        numbers, texts = relation.of(NUMBER), relation.of(TEXT)
        days, moments, money = relation.of(DAY), relation.of(MOMENT), relation.of(MONEY)

        def some(names: list[str]) -> str:
            return f"{alias}.{self.random.choice(names)}"

        forms: list[str] = []
        if kind == NUMBER and numbers:
            n, m = some(numbers), some(numbers)
            forms = [n, n, n, f"{n} % 3", f"coalesce({n}, 7)", f"{n} % 5 + {m} % 4",
                     f"case when {n} > 1 then {m} else -1 end", f"abs({n})"]  # fmt: skip
        elif kind == TEXT and texts:
            t = some(texts)
            forms = [
                t,
                t,
                f"coalesce({t}, '?')",
                f"upper({t})",
                f"case when {t} = 'a' then 'x' end",
            ]
        elif kind == DAY and (days or moments):
            if days:
                d = some(days)
                forms = [d, d, d, f"{d} + 1", f"cast(date_trunc('month', {d}) as date)",
                         f"coalesce({d}, date '2026-02-01')"]  # fmt: skip
            if moments:
                forms += [f"cast({some(moments)} as date)"] * 3
        elif kind == MOMENT and moments:
            forms = [some(moments)] * 3 + [f"date_trunc('hour', {some(moments)})"]
        elif kind == MONEY and money:
            m = some(money)
            forms = [m, m, f"coalesce({m}, 0.5)", f"-{m}"]
        return self.random.choice(forms) if forms else None

    def condition(self, alias: str, relation: Relation) -> str:
        """A condition over a relation's columns, computed ones as well."""
        forms: list[Callable[[str], str]] = []
        name, kind = self.random.choice(relation.columns)
        if kind == NUMBER:
            forms = [lambda c: f"{c} > {self.random.randint(-1, 4)}",
                     lambda c: f"{c} = {self.random.randint(0, 3)}",
                     lambda c: f"{c} % 2 = 0", lambda c: f"coalesce({c}, 0) <> 1"]  # fmt: skip
        elif kind == TEXT:
            forms = [lambda c: f"{c} = 'a'", lambda c: f"{c} in ('a', 'b')"]
        elif kind == DAY:
            forms = [lambda c: f"{c} >= date '2026-02-02'", lambda c: f"{c} <> date '2026-02-01'"]
        elif kind == MONEY:
            forms = [lambda c: f"{c} < 1.5", lambda c: f"{c} > 0"]
        forms += [lambda c: f"{c} is not null", lambda c: f"{c} is null"]
        said = self.random.choice(forms)(f"{alias}.{name}")
        return f"not ({said})" if self.chance(0.1) else said

    def where(self, alias: str, relation: Relation, share: float = 0.4) -> str:
        if not self.chance(share):
            return ""
        said = [self.condition(alias, relation) for _ in range(self.random.choice([1, 1, 2]))]
        if self.wild and self.chance(0.03):
            said.append(self.across(alias, relation))
        return f" where {self.one(' and ', ' or ').join(said)}"

    def across(self, alias: str, relation: Relation) -> str:
        """A condition that looks beyond the row."""
        other = self.random.choice(self.made)
        numbers, others = relation.of(NUMBER), other.of(NUMBER)
        if not numbers or not others:
            return "true"
        n, o = f"{alias}.{self.random.choice(numbers)}", self.random.choice(others)
        return self.one(
            f"{n} in (select z.{o} from {other.name} as z)",
            f"exists (select 1 from {other.name} as z where z.{o} = {n})",
            f"{n} >= (select min(z.{o}) from {other.name} as z)",
        )

    # Operators

    def add(self, select: str, kinds: list[tuple[str, str]]) -> Relation:
        name = f"r{len(self.ctes)}"
        if self.chance(0.15):
            select = f"select * from ({select}) as inside"
        self.ctes.append(f"{name} as ({select})")
        made = Relation(name, tuple(kinds))
        self.made.append(made)
        return made

    def named(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def listed(self, values: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
        """Values with their kinds as a SELECT list, under new names."""
        kinds = [(self.named(), kind) for _, kind in values]
        said = []
        for (value, kind), (name, _) in zip(values, kinds, strict=True):
            exact = kind in (NUMBER, MONEY) or self.chance(0.3)
            said.append(
                f"cast({value} as {_SQL[kind]}) as {name}" if exact else f"{value} as {name}"
            )
        return ", ".join(said), kinds

    def all_columns(self, alias: str, relation: Relation) -> str:
        return ", ".join(f"{alias}.{name}" for name, _ in relation.columns)

    def some_values(self, alias: str, relation: Relation) -> list[tuple[str, str]]:
        """Most columns pass, some of them computed on the way."""
        found = []
        for name, kind in relation.columns:
            if self.chance(0.25) and len(relation.columns) > 3:
                continue
            value = self.value(alias, relation, kind) if self.chance(0.35) else None
            found.append((value or f"{alias}.{name}", kind))
        return found or [(f"{alias}.{relation.columns[0][0]}", relation.columns[0][1])]

    def project(self) -> Relation:
        relation = self.source()
        if self.chance(0.15):
            select = f"select a.* from {relation.name} as a{self.where('a', relation, 0.9)}"
            return self.add(select, list(relation.columns))
        said, kinds = self.listed(self.some_values("a", relation))
        distinct = self.one("", "", "", "distinct ")
        select = f"select {distinct}{said} from {relation.name} as a{self.where('a', relation)}"
        return self.add(select, kinds)

    def aggregate(self, alias: str, relation: Relation) -> tuple[str, str]:
        name, kind = self.random.choice(relation.columns)
        value = self.value(alias, relation, kind) or f"{alias}.{name}"
        forms = [("count(*)", NUMBER), (f"count({value})", NUMBER),
                 (f"count(distinct {value})", NUMBER), (f"min({value})", kind),
                 (f"max({value})", kind)]  # fmt: skip
        if kind in (NUMBER, MONEY):
            forms += [(f"sum({value})", kind)] * 3
            forms.append(
                (f"sum(case when {self.condition(alias, relation)} then {value} end)", kind)
            )
        return self.random.choice(forms)

    def group(self) -> Relation:
        relation = self.with_day() if self.chance(0.6) else self.source()
        by = self.keys("a", relation, self.random.choice([1, 1, 2, 2, 3]))
        values = by + [self.aggregate("a", relation) for _ in range(self.random.randint(1, 3))]
        said, kinds = self.listed(values)
        having = ""
        if self.chance(0.25):
            having = f" having {self.aggregate('a', relation)[0]} is not null"
            having = self.one(" having count(*) > 1", having)
        grouped = ", ".join(v for v, _ in by)
        if self.wild and self.chance(0.02):
            grouped = f"rollup ({grouped})"
        select = (f"select {said} from {relation.name} as a{self.where('a', relation)} "
                  f"group by {grouped}{having}")  # fmt: skip
        return self.add(select, kinds)

    def keys(self, alias: str, relation: Relation, count: int) -> list[tuple[str, str]]:
        """Different expressions to group or partition by, a day among them if there is one."""
        found: dict[str, str] = {}
        if relation.of(DAY, MOMENT) and self.chance(0.8):
            found[self.value(alias, relation, DAY) or ""] = DAY
        for name, kind in self.random.sample(relation.columns, len(relation.columns)):
            if len(found) >= count:
                break
            if kind in (NUMBER, TEXT, DAY):
                plain = f"{alias}.{name}"
                value = self.value(alias, relation, kind) if self.chance(0.3) else plain
                found.setdefault(value or plain, kind)
        if not found:
            name, kind = relation.columns[0]
            found[f"{alias}.{name}"] = kind
        return list(found.items())

    def window(self) -> Relation:
        relation = self.with_day() if self.chance(0.6) else self.source()
        part = ", ".join(v for v, _ in self.keys("a", relation, self.random.choice([1, 2])))
        order = self.all_columns("a", relation)
        name, kind = self.random.choice(relation.columns)
        value = f"a.{name}"
        forms = [(f"row_number() over (partition by {part} order by {order})", NUMBER)] * 3 + [
            (f"rank() over (partition by {part} order by {value} desc nulls last)", NUMBER),
            (f"count(*) over (partition by {part})", NUMBER),
            (f"max({value}) over (partition by {part})", kind),
            (f"lag({value}) over (partition by {part} order by {order})", kind),
            (f"first_value({value}) over (partition by {part} order by {order})", kind),
        ]  # fmt: skip
        values = [(f"a.{n}", k) for n, k in relation.columns]
        values += self.random.sample(forms, self.random.choice([1, 1, 2]))
        said, kinds = self.listed(values)
        last = ""
        if self.chance(0.25):
            last = f" qualify row_number() over (partition by {part} order by {order}) <= 1"
        select = f"select {said} from {relation.name} as a{self.where('a', relation, 0.25)}{last}"
        return self.add(select, kinds)

    def join(self) -> Relation:
        left, right = self.source(), self.random.choice(self.made)
        if not left.of(DAY, MOMENT) and self.chance(0.5):
            left = self.with_day()
        pairs = [(a, b) for a, kind in left.columns for b, other in right.columns if kind == other
                 and kind != MOMENT]  # fmt: skip
        how = self.one("join", "join", "left join", "left join", "left join", "right join",
                       "full join", ",", "semi join", "anti join")  # fmt: skip
        if not pairs:
            how = "cross join"
        on = [
            f"a.{a} = b.{b}"
            for a, b in self.random.sample(pairs, min(len(pairs), self.random.choice([1, 1, 2])))
        ]
        if self.chance(0.12) and on:
            on[0] = on[0].replace(" = ", self.one(" is not distinct from ", " <= "))
        if self.chance(0.2):
            on.append(self.condition("b", right))
        if self.chance(0.1):
            on.append(self.condition("a", left))
        values = self.some_values("a", left)
        if how not in {"semi join", "anti join"}:
            values += self.some_values("b", right)[: self.random.randint(0, 3)]
            values += self.mixed(left, right)
        said, kinds = self.listed(values)
        where = self.where("a", left, 0.3)
        if how not in {"semi join", "anti join"} and self.chance(0.25):
            where = self.where("b", right, 1.0)
            if how == "left join" and self.chance(0.4):
                where = f" where b.{self.random.choice(right.columns)[0]} is null"
        first = f"select {said} from {left.name} as a"
        if how == "cross join":
            return self.add(f"{first} cross join {right.name} as b{where}", kinds)
        if how == ",":
            also = f" and ({where.removeprefix(' where ')})" if where else ""
            return self.add(f"{first}, {right.name} as b where {' and '.join(on)}{also}", kinds)
        return self.add(f"{first} {how} {right.name} as b on {' and '.join(on)}{where}", kinds)

    def mixed(self, left: Relation, right: Relation) -> list[tuple[str, str]]:
        """A value that both sides of a join supply together, sometimes."""
        kind = self.one(DAY, NUMBER)
        a, b = self.value("a", left, kind), self.value("b", right, kind)
        if a is None or b is None or self.chance(0.7):
            return []
        return [(f"greatest({a}, {b})" if kind == DAY else f"{a} % 4 + {b} % 4", kind)]

    def union(self) -> Relation:
        left, right = self.source(), self.random.choice(self.made)
        kinds = [kind for _, kind in left.columns if right.of(kind)]
        if not kinds:
            return self.project()
        kinds = self.random.sample(kinds, self.random.randint(1, len(kinds)))
        if DAY in [k for _, k in left.columns] and right.of(DAY, MOMENT) and DAY not in kinds:
            kinds.append(DAY)
        lists = []
        for alias, relation in (("a", left), ("b", right)):
            own = [f"cast({self.value(alias, relation, kind)} as {_SQL[kind]})" for kind in kinds]
            lists.append((own, relation))
        names = [self.named() for _ in kinds]
        word = self.one("union all", "union all", "union all", "union", "except", "intersect")
        first = ", ".join(f"{v} as {n}" for v, n in zip(lists[0][0], names, strict=True))
        second = ", ".join(lists[1][0])
        before, after = self.where("a", left, 0.3), self.where("b", right, 0.3)
        select = (
            f"select {first} from {left.name} as a{before} {word} "
            f"select {second} from {right.name} as b{after}"
        )
        return self.add(select, list(zip(names, kinds, strict=True)))

    def few(self) -> Relation:
        """A construct that nobody can follow: the first rows, or one of each group at choice."""
        relation = self.source()
        said, kinds = self.listed(self.some_values("a", relation))
        order = self.all_columns("a", relation)
        name = self.random.choice(relation.columns)[0]
        select = self.one(
            f"select {said} from {relation.name} as a order by {order} limit 4",
            f"select distinct on (a.{name}) {said} from {relation.name} as a "
            f"order by a.{name}, {order}",
        )
        return self.add(select, kinds)

    # The whole

    def chain(self) -> Chain:
        operators = [self.project, self.project, self.group, self.group, self.window, self.window,
                     self.join, self.join, self.join, self.union]  # fmt: skip
        for _ in range(self.random.randint(1, 6)):
            operator = (
                self.few if self.wild and self.chance(0.015) else self.random.choice(operators)
            )
            operator()
        return self.last()

    def last(self) -> Chain:
        relation = self.made[-1]
        if not relation.of(DAY, MOMENT) or self.chance(0.1):
            relation = self.with_day()
        form = self.one("day", "day", "day", "grouped", "grouped", "at", "key", "number")
        if form == "at" and not relation.of(MOMENT):
            form = "day"
        if form in {"key", "number"} and not relation.of(NUMBER):
            form = "day"
        kinds = [self.one(NUMBER, NUMBER, MONEY, TEXT) for _ in range(self.random.randint(1, 3))]
        values = [(self.value("q", relation, kind) or "null", kind) for kind in kinds]
        plain = ", ".join(f"cast({v} as {_SQL[k]}) as v{n}" for n, (v, k) in enumerate(values))
        with_ = f"with {', '.join(self.ctes)} " if self.ctes else ""
        others = tuple((f"v{n}", kind) for n, (_, kind) in enumerate(values))
        where = self.where("q", relation, 0.3)
        if form in {"day", "at", "number"}:
            kind = {"day": DAY, "at": MOMENT, "number": NUMBER}[form]
            first = self.value("q", relation, kind)
            name = {"number": "key"}.get(form, form)
            if kind == NUMBER:
                first = f"cast({first} as bigint)"
            sql = f"{with_}select {first} as {name}, {plain} from {relation.name} as q{where}"
            return Chain(sql, ((name, kind), *others), by_day=form == "at")
        aggregates = [self.aggregate("q", relation) for _ in values]
        counted = ", ".join(
            f"cast({v} as {_SQL[k]}) as v{n}" for n, (v, k) in enumerate(aggregates)
        )
        others = tuple((f"v{n}", kind) for n, (_, kind) in enumerate(aggregates))
        kind, name = (DAY, "day") if form == "grouped" else (NUMBER, "key")
        first = self.value("q", relation, kind)
        if form == "key":
            first = f"coalesce(cast({first} as bigint), -9)"
        sql = (f"{with_}select {first} as {name}, {counted} from {relation.name} as q{where} "
               f"group by {first}")  # fmt: skip
        return Chain(sql, ((name, kind), *others), keyed=form == "key")


def chain(seed: int, stored: tuple[Relation, ...], *, wild: bool = True) -> Chain:
    """The query of a seed over stored tables; `wild` ones hold constructs without a rule, too."""
    return _Writer(Random(seed), stored, wild=wild).chain()
