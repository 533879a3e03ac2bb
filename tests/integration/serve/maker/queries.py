"""Queries by chance; windows and LIMIT stand on a total order, so that each has one answer."""

from __future__ import annotations

from tests.integration.serve.maker.ranges import TIMED, Ranges
from tests.integration.serve.maker.values import FACTS

ORDERS = (
    "order by f.id", "order by f.amount desc, f.id", "order by f.x nulls first, f.id",
    "order by f.local, f.id desc", "order by f.name desc nulls last, f.id",
    "order by f.moment nulls first, f.id", "order by f.flag, f.day desc nulls first, f.id",
)  # fmt: skip
FRAMES = (
    "", "", " rows between 2 preceding and current row",
    " rows between unbounded preceding and unbounded following",
    " rows between 1 preceding and 1 following", " rows between current row and 2 following",
    " range between unbounded preceding and current row",
)  # fmt: skip


class Maker(Ranges):
    """Makes questions by chance; the same ones from the same seed."""

    table = "silver.facts"
    time: tuple[str, str] | None = None
    """The column from which on the table is held, and its kind, where it is not held whole."""

    def question(self) -> str:
        """The next question."""
        # Of the rows of facts one table is held whole, the others from EDGE on.
        self.table = self.pick("silver.facts", "silver.facts", "silver.facts", *TIMED)
        self.time = (TIMED[self.table], TIMED[self.table]) if self.table in TIMED else None
        return self._question()

    def _question(self) -> str:
        kinds = (self.rows, self.rows, self.groups, self.groups, self.total, self.joined,
                 self.joined, self.windowed, self.windowed, self.nested, self.nested, self.chained,
                 self.around, self.sets, self.grouping_sets, self.by_time,
                 self.scalars)  # fmt: skip
        return str(self.chance.choice(kinds)())

    def source(self, depth: int, alias: str = "f") -> str:
        """FROM and WHERE: the table of this question, of one that has a time mostly a range."""
        return f"from {self.table} {alias} where {self.where(depth, alias)}"

    def where(self, depth: int, alias: str = "f") -> str:
        condition = self.condition(depth, f"{alias}.")
        # Conditions by chance are mostly narrow, and of no rows there is little to compare.
        wider = f"({condition} or {self.condition(0, f'{alias}.')})"
        if self.time is None or self.chance.random() < 0.05:
            return str(self.pick(condition, wider, wider))
        column, kind = self.time
        within = self.within(f"{alias}.{column}", kind)
        return str(self.pick(f"{within} and {condition}", f"{wider} and {within}",
                             f"{wider} and {within}", within))  # fmt: skip

    def aggregate(self, scope: str = "f.") -> str:
        """An aggregate whose value does not depend on the order of rows."""
        number = self.value(self.pick("integer", "decimal", "double"), 1, scope)
        anything = self.value(self.chance.choice(list(FACTS)), 1, scope)
        made = str(self.pick(
            "count(*)", f"count({anything})", f"count(distinct {anything})", f"min({anything})",
            f"max({anything})", f"sum({scope}k)", f"sum({scope}amount)", f"sum({number})",
            f"avg({scope}amount)", f"avg({scope}k)", f"avg({number})", f"stddev({scope}k)",
            f"bool_and({scope}flag)", f"bool_or({scope}flag)",
            f"count_if({self.condition(0, scope)})", f"median({scope}k)",
            f"sum({scope}amount) / count(*)", f"round(avg({scope}amount), 2)",
            f"string_agg({scope}name, '|' order by {scope}id)",
            f"quantile_cont({scope}k, {self.pick('0.25', '0.9')})",
            f"sum(distinct {scope}k)", f"avg(distinct {scope}amount)", f"var_pop({scope}rate)",
            f"sum(case when {self.condition(0, scope)} then {scope}amount else 0 end)",
        ))  # fmt: skip
        simple = "/" not in made and not made.startswith("round")
        if simple and self.chance.random() < 0.25:
            made += f" filter (where {self.condition(0, scope)})"
        return made

    def values(self, count: int, scope: str = "f.") -> str:
        families = [self.chance.choice(list(FACTS)) for _ in range(count)]
        return ", ".join(f"{self.value(f, 2, scope)} as v{n}" for n, f in enumerate(families))

    # Kinds of queries ----------------------------------------------------------------------------

    def rows(self) -> str:
        if self.chance.random() < 0.2:
            return f"select distinct {self.values(2)} {self.source(1)}"
        order = self.pick(
            "", " order by f.id", " order by f.id desc limit 17",
            " order by v0 desc nulls first, f.id limit 40 offset 3",
            " order by v0 nulls last, v1 desc nulls last, f.id limit 25",
            " order by v0 asc nulls first, f.id desc", " order by 2 desc, 1 limit 30",
        )  # fmt: skip
        return f"select f.id, {self.values(3)} {self.source(2)}{order}"

    def groups(self) -> str:
        key = self.value(self.pick("integer", "text", "boolean", "date", "timestamp"), 1)
        having = self.pick("", "", " having count(*) > 3", " having a0 is not null",
                           " having sum(f.amount) > 100 or max(f.k) is null")  # fmt: skip
        by = self.pick("1", "g", "all")
        return (f"select {key} as g, {self.aggregate()} as a0, {self.aggregate()} as a1 "
                f"{self.source(1)} group by {by}{having}")  # fmt: skip

    def grouping_sets(self) -> str:
        keys = self.pick(("k", "flag"), ("flag", "day"), ("k", "name"))
        by = self.pick("rollup (f.{}, f.{})", "cube (f.{}, f.{})",
                       "f.{}, rollup (f.{})", "f.{}, cube (f.{})", "grouping sets ((f.{}), (f.{}))",
                       "grouping sets ((f.{0}), (f.{1}), ())",
                       "grouping sets ((f.{0}, f.{1}), (f.{1}))").format(*keys)  # fmt: skip
        return (f"select f.{keys[0]}, f.{keys[1]}, count(*) as n, {self.aggregate()} as a "
                f"{self.source(1)} group by {by}")  # fmt: skip

    def total(self) -> str:
        return (f"select {self.aggregate()}, {self.aggregate()} as b, {self.aggregate()} "
                f"{self.source(2)}")  # fmt: skip

    def by_time(self) -> str:
        """What a dashboard asks: by a unit of time, in its order."""
        unit = self.pick("day", "week", "month", "hour", "quarter")
        column = self.pick("f.local", "f.moment", "f.day")
        return (f"select date_trunc('{unit}', {column}) as t, {self.aggregate()} as a, "
                f"{self.aggregate()} as b {self.source(0)} group by 1 "
                f"order by t {self.pick('', 'desc', 'nulls first', 'desc nulls last')} "
                f"limit {self.pick(5, 100)}")  # fmt: skip

    def joined(self) -> str:
        kind = self.pick("join", "left join", "full join", "right join")
        on = self.pick(
            "on f.k = d.k", "on f.k = d.k and f.amount > d.weight", "using (k)",
            "on f.k is not distinct from d.k", "on f.k = d.k + 1 and f.name <> d.label",
        )  # fmt: skip
        if self.chance.random() < 0.25:
            half = self.pick("semi", "anti")
            return (f"select f.id, f.name from {self.table} f "
                    f"{half} join silver.dims d on f.k = d.k where {self.where(1)}")  # fmt: skip
        if self.chance.random() < 0.2:
            return self._joined_thrice()
        what = self.pick(
            f"select f.id, d.label, d.weight, {self.value('decimal', 1)} as v",
            "select k, f.id, d.label" if on.startswith("using") else "select f.id, f.k, d.label",
            "select d.label, count(*) as n, sum(f.amount * d.weight) as s, "
            f"{self.aggregate()} as a",
        )
        where = self.pick(f" where {self.where(1)}", f" where {self.where(0)}",
                          " where d.label is not null")  # fmt: skip
        grouped = " group by d.label" if "count(*) as n" in what else ""
        return f"{what} from {self.table} f {kind} silver.dims d {on}{where}{grouped}"

    def _joined_thrice(self) -> str:
        kinds = self.pick("join", "left join"), self.pick("join", "left join", "full join")
        return (f"select f.id, d.label, g.total, g.total - f.amount as rest from {self.table} f "
                f"{kinds[0]} silver.dims d on d.k = f.k {kinds[1]} gold.days g on g.day = f.day "
                f"where {self.where(1)}")  # fmt: skip

    def windowed(self) -> str:
        by = self.pick("", "partition by f.k ", "partition by f.name ", "partition by f.day ",
                       "partition by f.flag, f.k ")  # fmt: skip
        order, frame = self.chance.choice(ORDERS), self.chance.choice(FRAMES)
        made = self.pick(
            f"row_number() over ({by}{order})",
            f"rank() over ({by}{order})",
            f"sum(f.amount) over ({by}{order}{frame})",
            f"sum(f.k) over ({by}{order}{frame})",
            f"avg(f.amount) over ({by}{order}{frame})",
            f"min(f.day) over ({by}{order}{frame})",
            f"lag(f.amount, 2) over ({by}{order})",
            f"lead(f.name) over ({by}{order})",
            f"lag(f.k, 1, 0) over ({by}{order})",
            f"count(*) over ({by}{order}{frame})",
            f"count(f.x) over ({by}{order}{frame})",
            f"first_value(f.k) over ({by}{order}{frame})",
            f"last_value(f.name) over ({by}{order}{frame})",
            f"max(f.name) over ({by}{order}{frame})",
            f"max(f.x) over ({by})",
            f"ntile(3) over ({by}{order})",
            f"dense_rank() over ({by}order by f.k)",
            f"percent_rank() over ({by}{order})",
            f"cume_dist() over ({by}{order})",
            f"f.amount - lag(f.amount) over ({by}{order})",
            f"sum(f.amount) over ({by})",
        )
        qualify = self.pick("", "", " qualify w is not null", " qualify w = 1") \
            if made.startswith(("row", "rank", "ntile")) else ""  # fmt: skip
        return f"select f.id, {made} as w, {self.values(1)} {self.source(1)}{qualify}"

    def nested(self) -> str:
        """A query in a WITH, and others over it."""
        family = self.pick("integer", "decimal", "text", "timestamp")
        time, kind = self.time or ("moment", "moment")
        # The range of a timed table stands inside, or only outside of it.
        outside = self.time is not None and self.chance.random() < 0.4
        where = self.condition(1) if outside else self.where(1)
        passed = f", f.{time} as told" if outside else ""
        inner = f"select f.id, f.k, {self.value(family, 2)} as v, f.day as d{passed}"
        inner += f" from {self.table} f where {where}"
        beside = f"select id, k, v, d from t where {self.within('told', kind)}"
        seen = f"({beside}) as u" if outside else "t as u"
        outer = self.pick(
            f"select k, count(v) as n, max(v) as m from {seen} group by k",
            f"select u.id, g.total from {seen} join gold.days g on u.d = g.day where g.seen > 0",
            f"select id, v from {seen} where k in (select k from silver.dims where label <> 'a')",
            f"select id from {seen} where not exists (select 1 from silver.dims d where d.k = u.k)",
            f"select id, (select max(weight) from silver.dims d where d.k = u.k) as w from {seen}",
            f"select k * 2 as kk, kk + 1 as more from {seen} where kk > 0",
            f"select distinct k, v is null as gone from {seen} order by 1 nulls first, 2",
        )
        return f"with t as ({inner}) {outer}"

    def around(self) -> str:
        """A range around a query: it may be moved into some of them, and must not into others."""
        time, kind = self.time or ("moment", "moment")
        at, of = f"f.{time} as at", f"from {self.table} f"
        inner = self.pick(
            f"select f.id as id, {at}, f.k as w {of} where {self.condition(0)}",
            f"select f.id as id, {at}, row_number() over (order by f.id) as w {of}",
            f"select f.id as id, {at}, sum(f.k) over (partition by f.flag) as w {of}",
            f"select min(f.id) as id, {at}, count(*) as w {of} group by f.{time}",
            f"select f.id as id, max(f.{time}) as at, count(*) as w {of} group by f.id",
            f"select f.id as id, {at}, f.k as w {of} order by f.id limit 60",
            f"select distinct f.flag as id, {at}, f.k as w {of}",
            f"select f.id as id, lag(f.{time}) over (order by f.id) as at, f.k as w {of}",
            f"select f.id as id, {at}, "
            f"(select count(*) from {self.table} g where g.k = f.k) as w {of}",
            f"select f.id as id, {at}, f.k as w {of} where f.flag "
            f"union all select f.id, {at}, 0 {of}",
        )
        return f"select s.id, s.at, s.w from ({inner}) s where {self.within('s.at', kind)}"

    def chained(self) -> str:
        """Several WITHs, one in another, one used twice."""
        inner = f"select f.id, f.k, f.amount as a, f.flag {self.source(1)}"
        return str(self.pick(
            f"with t as ({inner}), s as (select k, sum(a) as b, count(*) as n from t group by k) "
            "select t.id, t.a, s.b from t left join s on t.k = s.k where s.n > 1 or s.n is null",
            f"with t as ({inner}), s as (select k, sum(a) as total from t group by k) "
            "select k, total, rank() over (order by total desc nulls last, k) as r from s",
            f"with o as (with t as ({inner}) select k, max(a) as m from t group by k having m > 0) "
            "select o.k, o.m, d.label from o left join silver.dims d on d.k = o.k",
            f"with t as ({inner}) select a.id, b.a as other from t a join t b on a.id = b.id + 1 "
            "where a.k is not null",
            f"with t as ({inner}) select * from (select id, k, row_number() over "
            "(partition by k order by a desc nulls last, id) as r from t) x where x.r <= 2",
            f"with t as ({inner}), u as (select k from t union select k from silver.dims) "
            "select u.k, count(t.id) as n from u left join t on t.k = u.k group by u.k",
            f"with t as ({inner}) select flag, k, total from (select flag, k, sum(a) as total "
            "from t group by flag, k) g where total > (select avg(a) from t)",
        ))  # fmt: skip

    def scalars(self) -> str:
        """Queries that stand for one value."""
        one = self.pick(
            "(select count(*) from silver.dims d where d.k = f.k)",
            "(select sum(d.weight) from silver.dims d where d.k = f.k and d.weight < f.amount)",
            "(select max(g.total) from gold.days g where g.day = f.day)",
            "(select avg(weight) from silver.dims)",
            "(select min(day) from gold.days)",
        )
        return f"select f.id, {one} as s, {self.values(1)} {self.source(1)}"

    def sets(self) -> str:
        family = self.pick("integer", "text", "decimal", "date", "timestamp", "boolean")
        verbs = ("union", "union all", "except", "intersect", "except all", "intersect all")
        verb = self.chance.choice(verbs)
        one, other = self.value(family, 1), self.value(family, 1)
        made = f"select {one} as v {self.source(1)} {verb} select {other} {self.source(1)}"
        if self.chance.random() < 0.2:
            third = f"select {self.value(family, 0)} as v {self.source(0)}"
            return f"select v from ({made}) s {self.pick('union', 'except', 'intersect')} {third}"
        if self.chance.random() < 0.25:
            return f"select v, count(*) as n from ({made}) s group by v"
        return made
