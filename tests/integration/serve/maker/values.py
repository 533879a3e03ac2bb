"""Expressions by chance over the columns of `silver.facts`, one method a family of types."""

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
CLOCKS = ["00:00:00", "00:00:00.000001", "23:59:59.999999", "12:00:00"]
COMPARED = ("<", "<=", "=", "<>", ">", ">=")


class Values:
    """Makes expressions by chance; the same ones from the same seed."""

    columns = FACTS

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def value(self, family: str, depth: int, scope: str = "f.") -> str:
        """An expression of a family over the columns of facts."""
        column = scope + self.chance.choice(self.columns[family])
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
                return f"timestamp '{day} {self.chance.choice(CLOCKS)}'"
        zone = self.pick("+00:00", "+00:00", "+01:00", "-05:30")
        return f"timestamptz '{day} {self.chance.choice(CLOCKS)}{zone}'"

    # Conditions ----------------------------------------------------------------------------------

    def condition(self, depth: int, scope: str = "f.") -> str:
        """A condition, with nulls and NaNs in its way."""
        if depth > 0 and self.chance.random() < 0.35:
            left, right = self.condition(depth - 1, scope), self.condition(depth - 1, scope)
            return str(self.pick(f"({left} and {right})", f"({left} or {right})", f"not ({left})"))
        family = str(self.pick(*FACTS, "numbers", "times", "like", "rows"))
        made = getattr(self, f"_by_{family}", None)
        if made is not None:
            return str(made(scope))
        one, other = self.value(family, depth, scope), self.value(family, depth, scope)
        return str(self.pick(
            f"{one} {self.chance.choice(COMPARED)} {other}", f"{one} is null",
            f"{one} is not null", f"{one} is distinct from {other}",
            f"{one} is not distinct from {other}",
            f"{one} in ({self.constant(family)}, {self.constant(family)})",
            f"{one} in ({self.constant(family)}, null)",
            f"{one} not in ({self.constant(family)}, {other})",
            f"{one} not in ({self.constant(family)}, null)",
            f"{one} between {self.constant(family)} and {other}",
            f"{one} not between {self.constant(family)} and {other}",
        ))  # fmt: skip

    def _by_numbers(self, scope: str) -> str:
        """Numbers of two families compared."""
        sides = [self.value(self.pick("integer", "decimal", "double"), 1, scope) for _ in "12"]
        return f"{sides[0]} {self.chance.choice(COMPARED)} {sides[1]}"

    def _by_times(self, scope: str) -> str:
        """A time compared with constants of another kind of time, or with a text."""
        column = scope + self.pick("day", "local", "moment")
        low, high = sorted((self.chance.choice(EDGES), self.chance.choice(EDGES)))
        span = f"interval {self.pick(1, 3)} {self.pick('day', 'week', 'month', 'hour')}"
        return str(self.pick(
            f"{column} >= '{low}'", f"{column} between '{low}' and '{high}'",
            f"{column} < timestamp '{high}'", f"{column} >= date '{low}'",
            f"date_trunc('day', {column}) = timestamp '{low}'",
            f"{column} > timestamp '{high}' - {span}", f"{scope}local = {scope}day",
            f"{scope}moment {self.chance.choice(COMPARED)} {scope}local",
            f"{scope}local - {span} < {scope}moment",
            f"{column} in (timestamp '{low}', timestamp '{high} 00:00:00.000001')",
        ))  # fmt: skip

    def _by_like(self, scope: str) -> str:
        """A text by a pattern."""
        like = self.pick("'a%'", "'%b'", "'a_b'", "'%\\%'", "'A%'", "'%ü%'", "'a!_b' escape '!'")
        ilike = self.pick("'a%'", "'ZÜ%'", "'%B'")
        pattern = self.pick("'[0-9]+'", "'^[a-c]'", "'(a|b)'")
        return str(self.pick(
            f"{scope}name like {like}", f"{scope}name not like {like}",
            f"{scope}name ilike {ilike}", f"regexp_matches({scope}name, {pattern})",
            f"starts_with({scope}name, {self.constant('text')})",
            f"ends_with({scope}name, 'b')", f"contains({scope}name, 'b')",
        ))  # fmt: skip

    def _by_rows(self, scope: str) -> str:
        """A condition on the rows of another query."""
        key = self.pick(f"{scope}k", f"{scope}k + 1")
        keys = self.pick("select k from silver.dims", "select d.k from silver.dims d where d.k > 0",
                         "select k from silver.dims where k is not null",
                         "select k from silver.dims where ratio > 1",
                         "select k from silver.dims where ratio >= 0e0")  # fmt: skip
        return str(self.pick(
            f"{key} in ({keys})", f"{key} not in ({keys})",
            f"exists (select 1 from silver.dims d where d.k = {key})",
            f"not exists (select 1 from silver.dims d where d.k = {key} "
            f"and d.weight > {scope}amount)",
            f"{scope}day in (select g.day from gold.days g where g.seen > {self.pick(0, 2)})",
            f"{scope}amount > (select avg(weight) from silver.dims)",
            f"{scope}x < (select {self.pick('max', 'min')}(ratio) from silver.dims)",
            f"{scope}amount < (select max(d.weight) from silver.dims d where d.k = {scope}k)",
        ))  # fmt: skip

    # One kind of expression a family -------------------------------------------------------------

    def _either(self, family: str, depth: int, scope: str) -> str:
        one, other = self.value(family, depth, scope), self.value(family, depth, scope)
        return str(self.pick(
            f"coalesce({one}, {other})", f"nullif({one}, {other})",
            f"case when {self.condition(0, scope)} then {one} else {other} end",
            f"case when {self.condition(0, scope)} then {one} "
            f"when {self.condition(0, scope)} then {other} end",
            f"case {scope}k when 1 then {one} when -2 then {other} else {one} end",
            f"case when {self.condition(0, scope)} then {one} else null end",
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
            f"({scope}k * {other})", f"(-{scope}k)",
            f"abs({one})", f"length({text})", f"strpos({text}, 'b')",
            f"extract({part} from {when})", f"date_part('{part}', {when})",
            f"{self.pick('year', 'month', 'day', 'hour', 'minute', 'second')}({when})",
            f"dayofweek({when})", f"date_diff('{unit}', {when}, {when})",
            f"date_diff('{unit}', {scope}local, {self.constant('timestamp')})",
            f"date_diff('{unit}', {scope}moment, {self.constant('timestamptz')})",
            f"({day} - {self.constant('date')})", f"cast({scope}flag as int)",
            f"cast({self.value('double', 0, scope)} > 1 as int)",
            f"cast({self.value('decimal', 0, scope)} as int)", f"cast({scope}amount as bigint)",
            f"len({scope}tags)", self._either("integer", depth, scope),
        ))  # fmt: skip

    def _decimal(self, depth: int, scope: str) -> str:
        one, other = self.value("decimal", depth, scope), self.constant("decimal")
        return str(self.pick(
            f"({one} + {other})", f"({one} - {scope}k)", f"({scope}amount * {other})",
            f"({scope}amount * {scope}rate)", f"({scope}amount + {scope}rate)", f"abs({one})",
            f"round({one}, 1)", f"round({one})", f"floor({one})", f"ceil({one})", f"-({one})",
            f"({scope}amount % 3)", f"({scope}rate % 0.3)", f"cast({one} as decimal(30, 3))",
            f"cast({scope}k as decimal(10, 2))", f"cast({scope}rate as decimal(9, 1))",
            self._either("decimal", depth, scope),
        ))  # fmt: skip

    def _double(self, depth: int, scope: str) -> str:
        one = self.value(self.pick("double", "integer", "decimal"), depth, scope)
        other = self.value(self.pick("double", "integer", "decimal"), 0, scope)
        return str(self.pick(
            f"({one} / {other})", f"({one} + {scope}x)", f"({scope}x * {one})", f"(-{scope}x)",
            f"round({scope}x, 2)", f"sqrt(abs({scope}k))", f"power({scope}k, 2)",
            f"cast({one} as double)", f"floor({scope}k)", f"abs({scope}x)", f"round({scope}x)",
            f"(({one} / 3) / {other})", f"epoch({scope}moment)", f"epoch({scope}local)",
            self._either("double", depth, scope),
        ))  # fmt: skip

    def _text(self, depth: int, scope: str) -> str:
        one, other = self.value("text", depth, scope), self.constant("text")
        return str(self.pick(
            f"({one} || {other})", f"concat({one}, {other}, 'x')", f"lower({one})", f"trim({one})",
            f"upper({one})", f"({one} || {scope}k)", f"rtrim({one})",
            f"regexp_replace({one}, '[a-c]+', '-', 'g')",
            f"substring({one}, 1, 2)", f"substring({one}, 2)", f"left({one}, 1)",
            f"right({one}, 2)",
            f"replace({one}, 'a', 'é')", f"split_part({one}, 'b', 1)", f"cast({scope}k as varchar)",
            f"cast({scope}amount as varchar)", f"cast({scope}day as varchar)", f"md5({one})",
            f"cast({scope}local as varchar)", f"coalesce({one}, '-')",
            f"{scope}tags[1]", f"{scope}point.label", f"ltrim({one})", f"cast({scope}flag as text)",
            self._either("text", depth, scope),
        ))  # fmt: skip

    def _boolean(self, depth: int, scope: str) -> str:
        one = self.value("boolean", depth, scope)
        return str(self.pick(
            f"({self.condition(depth, scope)})", f"(not {one})", f"({one} is true)",
            f"({one} is not false)", f"coalesce({one}, false)",
            f"starts_with({scope}name, 'a')", f"(cast({scope}k as boolean))",
        ))  # fmt: skip

    def _date(self, depth: int, scope: str) -> str:
        one = self.value("date", depth, scope)
        return str(self.pick(
            f"({one} + {self.pick(1, 30)})", f"({one} - 7)", f"cast({scope}local as date)",
            f"cast({scope}moment as date)", self._either("date", depth, scope),
            f"cast(date_trunc('{self.pick('month', 'week', 'year')}', {one}) as date)",
            f"cast({one} + interval 1 month as date)",
        ))  # fmt: skip

    def _timestamp(self, depth: int, scope: str) -> str:
        one = self.value("timestamp", depth, scope)
        units = ("second", "hour", "day", "month", "minute", "week", "year")
        span = f"interval {self.pick(1, 2, 36)} {self.chance.choice(units)}"
        unit = self.pick("month", "day", "hour", "week", "quarter", "year", "minute", "second")
        return str(self.pick(
            f"({one} + {span})", f"({one} - {span})", f"date_trunc('{unit}', {one})",
            f"date_trunc('{unit}', {scope}day)", f"({scope}day + {span})",
            f"cast({scope}day as timestamp)",
            f"cast({scope}moment as timestamp)", self._either("timestamp", depth, scope),
        ))  # fmt: skip

    def _timestamptz(self, depth: int, scope: str) -> str:
        one = self.value("timestamptz", depth, scope)
        span = f"interval {self.pick(1, 2)} {self.pick('hour', 'day', 'month', 'second')}"
        unit = self.pick("month", "day", "hour", "week")
        return str(self.pick(
            f"({one} + {span})", f"({one} - {span})", f"date_trunc('{unit}', {one})",
            f"cast({scope}local as timestamptz)", f"cast({scope}day as timestamptz)",
            self._either("timestamptz", depth, scope),
        ))  # fmt: skip
