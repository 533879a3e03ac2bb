"""Questions by chance over the awkward lake, each with one right answer."""

from __future__ import annotations

import random
from typing import Any

FACTS = {
    "integer": ["id", "k", "big"],
    "decimal": ["amount", "rate"],
    "double": ["x"],
    "text": ["name"],
    "boolean": ["flag"],
    "date": ["day"],
    "timestamp": ["local"],
    "timestamptz": ["moment"],
}
EDGES = ["2026-02-18", "2026-02-28", "2026-03-01", "2026-03-02", "2026-03-12"]


class Maker:
    """Makes questions by chance; the same ones from the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def value(self, family: str, depth: int, scope: str = "f.") -> str:
        """An expression of a family over the columns of facts."""
        column = scope + self.chance.choice(FACTS[family])
        if depth <= 0 or self.chance.random() < 0.3:
            return column if self.chance.random() < 0.85 else self.constant(family)
        maker = getattr(self, f"_{family}")
        made: str = maker(depth - 1, scope)
        return made

    def constant(self, family: str) -> str:
        day = self.chance.choice(EDGES)
        match family:
            case "integer":
                return str(self.chance.choice([0, 1, 2, 3, -1, 7, 100]))
            case "decimal":
                return str(self.pick("0.01", "1.10", "2.50", "99.99", "-0.5", "100.000"))
            case "double":
                return str(self.pick("1e0", "0.5e0", "2.5e0", "-1e0", "0e0"))
            case "text":
                return str(self.pick("'a'", "'Zürich'", "''", "'b'", "'a\\b'", "'ß'"))
            case "boolean":
                return str(self.pick("true", "false"))
            case "date":
                return f"date '{day}'"
            case "timestamp":
                return f"timestamp '{day} 00:00:00{self.pick('', '.000001')}'"
        return f"timestamptz '{day} 00:00:00+00:00'"

    def condition(self, depth: int, scope: str = "f.") -> str:
        """A condition, with nulls and NaNs in its way."""
        if depth > 0 and self.chance.random() < 0.35:
            left, right = self.condition(depth - 1, scope), self.condition(depth - 1, scope)
            return str(self.pick(f"({left} and {right})", f"({left} or {right})", f"not ({left})"))
        family = str(self.pick(*FACTS, "numbers", "times", "like"))
        if family == "numbers":
            sides = [self.value(self.pick("integer", "decimal", "double"), 1, scope) for _ in "12"]
            return f"{sides[0]} {self.pick('<', '<=', '=', '<>', '>', '>=')} {sides[1]}"
        if family == "times":
            column = self.pick("day", "local", "moment")
            low, high = sorted((self.chance.choice(EDGES), self.chance.choice(EDGES)))
            return str(self.pick(
                f"{scope}{column} >= '{low}'", f"{scope}{column} between '{low}' and '{high}'",
                f"{scope}{column} < timestamp '{high}'", f"{scope}{column} >= date '{low}'",
                f"date_trunc('day', {scope}{column}) = timestamp '{low}'",
                f"{scope}{column} > timestamp '{high}' - interval {self.pick(1, 3)} "
                f"{self.pick('day', 'week', 'month', 'hour')}",
            ))  # fmt: skip
        if family == "like":
            like = self.pick(
                "'a%'", "'%b'", "'a_b'", "'%\\%'", "'A%'", "'%ü%'", "'a!_b' escape '!'"
            )
            verb = self.pick("like", "not like", "like")
            return f"{scope}name {verb} {like}"
        one, other = self.value(family, depth, scope), self.value(family, depth, scope)
        return str(self.pick(
            f"{one} {self.pick('<', '<=', '=', '<>', '>', '>=')} {other}", f"{one} is null",
            f"{one} is not null", f"{one} is distinct from {other}",
            f"{one} in ({self.constant(family)}, {self.constant(family)})",
            f"{one} not in ({self.constant(family)}, {other})",
            f"{one} between {self.constant(family)} and {other}",
        ))  # fmt: skip

    # One kind of expression a family -------------------------------------------------------------

    def _either(self, family: str, depth: int, scope: str) -> str:
        one, other = self.value(family, depth, scope), self.value(family, depth, scope)
        return str(self.pick(
            f"coalesce({one}, {other})", f"nullif({one}, {other})",
            f"case when {self.condition(0, scope)} then {one} else {other} end",
            f"case when {self.condition(0, scope)} then {one} end",
            f"if({self.condition(0, scope)}, {one}, {other})", f"greatest({one}, {other})",
            f"least({one}, {other})",
        ))  # fmt: skip

    def _integer(self, depth: int, scope: str) -> str:
        one, other = self.value("integer", depth, scope), self.constant("integer")
        text, day = self.value("text", depth, scope), self.value("date", 0, scope)
        when = self.value(self.pick("timestamp", "timestamptz", "date"), 0, scope)
        part = self.pick("year", "month", "day", "dow", "isodow", "week", "doy", "quarter")
        unit = self.pick("day", "month", "year", "hour", "minute", "second")
        return str(self.pick(
            f"({one} + {other})", f"({one} - {other})", f"({one} % {other})", f"({one} // {other})",
            f"abs({one})", f"length({text})", f"strpos({text}, 'b')",
            f"extract({part} from {when})",
            f"year({when})", f"dayofweek({when})", f"date_diff('{unit}', {when}, {when})",
            f"date_diff('{unit}', {scope}local, {self.constant('timestamp')})",
            f"({day} - {self.constant('date')})",
            f"cast({self.value('double', 0, scope)} > 1 as int)",
            f"cast({self.value('decimal', 0, scope)} as int)", f"cast({scope}amount as bigint)",
            f"len({scope}tags)", self._either("integer", depth, scope),
        ))  # fmt: skip

    def _decimal(self, depth: int, scope: str) -> str:
        one, other = self.value("decimal", depth, scope), self.constant("decimal")
        return str(self.pick(
            f"({one} + {other})", f"({one} - {scope}k)", f"({scope}amount * {other})",
            f"abs({one})",
            f"round({one}, 1)", f"round({one})", f"floor({one})", f"ceil({one})", f"-({one})",
            f"({scope}amount % 3)", f"cast({one} as decimal(30, 3))",
            f"cast({scope}k as decimal(10, 2))",
        ))  # fmt: skip

    def _double(self, depth: int, scope: str) -> str:
        one = self.value(self.pick("double", "integer", "decimal"), depth, scope)
        other = self.value(self.pick("double", "integer", "decimal"), 0, scope)
        return str(self.pick(
            f"({one} / {other})", f"({one} + {scope}x)", f"({scope}x * {one})",
            f"round({scope}x, 2)",
            f"cast({one} as double)", f"floor({scope}k)", f"abs({scope}x)", f"round({scope}x)",
            f"(({one} / 3) / {other})", f"epoch({scope}moment)",
            self._either("double", depth, scope),
        ))  # fmt: skip

    def _text(self, depth: int, scope: str) -> str:
        one, other = self.value("text", depth, scope), self.constant("text")
        return str(self.pick(
            f"({one} || {other})", f"concat({one}, {other}, 'x')", f"lower({one})", f"trim({one})",
            f"substring({one}, 1, 2)", f"substring({one}, 2)", f"left({one}, 1)",
            f"right({one}, 2)",
            f"replace({one}, 'a', 'é')", f"split_part({one}, 'b', 1)", f"cast({scope}k as varchar)",
            f"cast({scope}amount as varchar)", f"cast({scope}day as varchar)", f"md5({one})",
            f"{scope}tags[1]", f"{scope}point.label", f"ltrim({one})", f"cast({scope}flag as text)",
            self._either("text", depth, scope),
        ))  # fmt: skip

    def _boolean(self, depth: int, scope: str) -> str:
        one = self.value("boolean", depth, scope)
        return str(self.pick(
            f"({self.condition(depth, scope)})", f"(not {one})", f"({one} is true)",
            f"coalesce({one}, false)", f"starts_with({scope}name, 'a')",
        ))  # fmt: skip

    def _date(self, depth: int, scope: str) -> str:
        one = self.value("date", depth, scope)
        return str(self.pick(
            f"({one} + {self.pick(1, 30)})", f"({one} - 7)", f"cast({scope}local as date)",
            f"cast({scope}moment as date)", self._either("date", depth, scope),
            f"cast(date_trunc('{self.pick('month', 'week', 'year')}', {one}) as date)",
        ))  # fmt: skip

    def _timestamp(self, depth: int, scope: str) -> str:
        one = self.value("timestamp", depth, scope)
        span = (
            f"interval {self.pick(1, 2, 36)} {self.pick('hour', 'day', 'month', 'minute', 'week')}"
        )
        unit = self.pick("month", "day", "hour", "week", "quarter", "year", "minute")
        return str(self.pick(
            f"({one} + {span})", f"({one} - {span})", f"date_trunc('{unit}', {one})",
            f"date_trunc('{unit}', {scope}day)", f"({scope}day + {span})",
            f"cast({scope}moment as timestamp)", self._either("timestamp", depth, scope),
        ))  # fmt: skip

    def _timestamptz(self, depth: int, scope: str) -> str:
        one = self.value("timestamptz", depth, scope)
        span = f"interval {self.pick(1, 2)} {self.pick('hour', 'day', 'month')}"
        unit = self.pick("month", "day", "hour", "week")
        return str(self.pick(
            f"({one} + {span})", f"({one} - {span})", f"date_trunc('{unit}', {one})",
            f"cast({scope}local as timestamptz)",
        ))  # fmt: skip

    # Queries -------------------------------------------------------------------------------------

    def aggregate(self, scope: str = "f.") -> str:
        """An aggregate whose value does not depend on the order of rows."""
        number = self.value(self.pick("integer", "decimal", "double"), 1, scope)
        anything = self.value(self.chance.choice(list(FACTS)), 1, scope)
        made = str(self.pick(
            "count(*)", f"count({anything})", f"count(distinct {anything})", f"min({anything})",
            f"max({anything})", f"sum({scope}k)", f"sum({scope}amount)", f"sum({number})",
            f"avg({scope}amount)", f"avg({scope}k)", f"avg({number})", f"stddev({scope}k)",
            f"bool_and({scope}flag)", f"count_if({self.condition(0, scope)})", f"median({scope}k)",
            f"sum({scope}amount) / count(*)", f"round(avg({scope}amount), 2)",
            f"sum(distinct {scope}k)",
        ))  # fmt: skip
        simple = "/" not in made and not made.startswith("round")
        if simple and self.chance.random() < 0.25:
            made += f" filter (where {self.condition(0, scope)})"
        return made

    def values(self, count: int, scope: str = "f.") -> str:
        families = [self.chance.choice(list(FACTS)) for _ in range(count)]
        return ", ".join(f"{self.value(f, 2, scope)} as v{n}" for n, f in enumerate(families))

    def rows(self) -> str:
        order = self.pick("", " order by f.id", " order by f.id desc limit 17",
                          " order by v0 desc nulls first, f.id limit 40 offset 3")  # fmt: skip
        return (f"select f.id, {self.values(3)} from silver.facts f "
                f"where {self.condition(2)}{order}")  # fmt: skip

    def groups(self) -> str:
        key = self.value(self.pick("integer", "text", "boolean", "date", "timestamp"), 1)
        having = self.pick("", "", " having count(*) > 3", " having a0 is not null")
        by = self.pick("1", "g", "all")
        return (f"select {key} as g, {self.aggregate()} as a0, {self.aggregate()} as a1 "
                f"from silver.facts f where {self.condition(1)} group by {by}{having}")  # fmt: skip

    def total(self) -> str:
        return (f"select {self.aggregate()}, {self.aggregate()} as b, {self.aggregate()} "
                f"from silver.facts f where {self.condition(2)}")  # fmt: skip

    def joined(self) -> str:
        kind = self.pick("join", "left join", "full join", "right join")
        on = self.pick("on f.k = d.k", "on f.k = d.k and f.amount > d.weight", "using (k)")
        what = self.pick(
            f"select f.id, d.label, d.weight, {self.value('decimal', 1)} as v",
            "select k, f.id, d.label" if on.startswith("using") else "select f.id, f.k, d.label",
            "select d.label, count(*) as n, sum(f.amount * d.weight) as s, "
            f"{self.aggregate()} as a",
        )
        where = self.pick("", f" where {self.condition(1)}", " where d.label is not null")
        grouped = " group by d.label" if "count(*) as n" in what else ""
        return f"{what} from silver.facts f {kind} silver.dims d {on}{where}{grouped}"

    def windowed(self) -> str:
        by = self.pick("", "partition by f.k ", "partition by f.name ", "partition by f.day ")
        order = self.pick("order by f.id", "order by f.amount desc, f.id",
                          "order by f.x nulls first, f.id",
                          "order by f.local, f.id desc")  # fmt: skip
        frame = self.pick("", " rows between 2 preceding and current row",
                          " rows between unbounded preceding and unbounded following")  # fmt: skip
        made = self.pick(
            f"row_number() over ({by}{order})",
            f"rank() over ({by}{order})",
            f"sum(f.amount) over ({by}{order}{frame})",
            f"avg(f.amount) over ({by}{order}{frame})",
            f"lag(f.amount, 2) over ({by}{order})",
            f"lead(f.name) over ({by}{order})",
            f"count(f.x) over ({by}{order}{frame})",
            f"first_value(f.k) over ({by}{order})",
            f"max(f.name) over ({by}{order}{frame})",
            f"ntile(3) over ({by}{order})",
            f"dense_rank() over ({by}order by f.k)",
        )
        qualify = self.pick("", "", " qualify w is not null", " qualify w = 1") \
            if made.startswith(("row", "rank", "ntile")) else ""  # fmt: skip
        return (f"select f.id, {made} as w, {self.values(1)} from silver.facts f "
                f"where {self.condition(1)}{qualify}")  # fmt: skip

    def nested(self) -> str:
        family = self.pick("integer", "decimal", "text", "timestamp")
        inner = f"select f.id, f.k, {self.value(family, 2)} as v, f.day from silver.facts f"
        outer = self.pick(
            "select k, count(v) as n, max(v) as m from t group by k",
            "select t.id, d.total from t join gold.days d on t.day = d.day where d.seen > 0",
            "select id, v from t where k in (select k from silver.dims where label is not null)",
            "select id from t where not exists (select 1 from silver.dims d where d.k = t.k)",
            "select id, (select max(weight) from silver.dims d where d.k = t.k) as w from t",
            "select a.id, b.v from t a join t b on a.id = b.id + 1 where a.k is not null",
            "select k * 2 as kk, kk + 1 as more from t where kk > 0",
        )
        return f"with t as ({inner} where {self.condition(1)}) {outer}"

    def sets(self) -> str:
        family = self.pick("integer", "text", "decimal", "date")
        verb = self.pick("union", "union all", "except", "intersect", "except all", "intersect all")
        one, other = self.value(family, 1), self.value(family, 1)
        return (f"select {one} as v from silver.facts f where {self.condition(1)} {verb} "
                f"select {other} from silver.facts f where {self.condition(1)}")  # fmt: skip

    def question(self) -> str:
        kinds = (self.rows, self.rows, self.groups, self.groups, self.total, self.joined,
                 self.windowed, self.nested, self.sets)  # fmt: skip
        return str(self.chance.choice(kinds)())
