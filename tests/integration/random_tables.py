"""Random tables of Postgres and random changes of them, the same for the same seed."""

from __future__ import annotations

import random
from typing import Any

LARGE = "(select string_agg(md5(random()::text || g), '') from generate_series(1, 300) g)"


def _list(element: str) -> str:
    return f"(select array_agg({element} order by g) from generate_series(1, 1500) g)"


TYPES: dict[str, tuple[str, ...]] = {
    # By type, expressions of values: small ones, those at bounds, and large ones that are kept
    # apart from their row and not sent again.
    "text": ("''", "'x'", "'__debezium_unavailable_value'", LARGE),
    "varchar(20000)": ("'é\\'", LARGE),
    "bytea": ("'\\x'", "'\\x00ff'", f"decode({LARGE}, 'hex')"),
    "jsonb": ("'{\"a\": 1.50}'", f"to_jsonb({LARGE})"),
    "numeric": ("'NaN'", "1e-30", "1.10", "(select string_agg('7', '')::numeric || '' from "
                "generate_series(1, 9000))::numeric"),
    "int[]": ("'{}'", "'{1,NULL}'", _list("(random() * 1e9)::int")),
    "bigint[]": ("'{1}'", _list("(random() * 1e15)::bigint")),
    "float8[]": ("'{NaN,1.5}'", _list("random()")),
    "numeric[]": ("'{1.10,NaN}'", _list("(random() * 1e9)::numeric")),
    "date[]": ("'{2020-01-01,infinity}'", _list("date '2000-01-01' + g")),
    "text[]": ("'{a,NULL,\"\"}'", "'{{a,b},{c,d}}'", _list("md5(random()::text)")),
    "uuid[]": ("'{}'", _list("gen_random_uuid()")),
    "hstore": ("'a=>1,b=>NULL'", f"hstore('k', {LARGE})"),
    "tsvector": ("'''a'':1'", "(select to_tsvector('simple', string_agg(md5(random()::text || g), "
                 "' ')) from generate_series(1, 300) g)"),
    "int4multirange": ("'{[1,3)}'", "(select range_agg(int4range(g * 10, g * 10 + 5)) from "
                       "generate_series(1, 1500) g)"),
    "date": ("'infinity'", "'0044-03-15 BC'", "'2024-02-29'"),
    "timestamp": ("'-infinity'", "'2020-01-01 00:00:00.000001'"),
    "timestamptz": ("'infinity'", "'2020-01-01 00:00:00.000001+02'"),
    "time": ("'24:00:00'", "'00:00'"),
    "interval": ("'1 mon -1 day'", "'-00:00:01.5'"),
    "float8": ("'NaN'", "5e-324", "0.1"),
    "boolean": ("true", "false"),
    "bit varying": ("'0001'", "''"),
    "box[]": ("'{(3,4),(1,2)}'",),
}  # fmt: skip
THROUGH_CONNECT = (
    "text", "varchar(20000)", "bytea", "jsonb", "int[]", "bigint[]", "uuid[]", "tsvector",
    "boolean", "float8",
)  # fmt: skip


class RandomTable:
    """A table `orders` whose columns are `id`, `n` and some of the types."""

    def __init__(self, seed: int, types: tuple[str, ...] = tuple(TYPES), count: int = 9) -> None:
        self._random = random.Random(seed)
        chosen = self._random.sample(types, min(count, len(types)))
        self.columns = {f"c{number}": type_ for number, type_ in enumerate(chosen)}
        self._required = self._random.choice(list(self.columns))
        self._extra = False

    def make(self, *, full: bool) -> list[str]:
        """Statements that make the table."""
        columns = ", ".join(
            f"{name} {type_}{' not null' if name == self._required else ''}"
            for name, type_ in self.columns.items()
        )
        apart = [
            f"alter table orders alter {name} set storage external"
            for name, type_ in self.columns.items()
            if len(TYPES[type_][-1]) > 60
        ]
        identity = ["alter table orders replica identity full"] if full else []
        made = f"create table orders (id int primary key, n int, {columns})"
        return ["drop table orders", made, *apart, *identity]

    def transaction(self, live: set[int]) -> tuple[str, set[int]]:
        """A transaction, and the keys that are there after it."""
        keys = set(live)
        statements = [self._statement(keys) for _ in range(self._random.randint(1, 5))]
        end, after = ("rollback", live) if self._random.random() < 0.15 else ("commit", keys)
        return f"begin; {'; '.join(statements)}; {end}", after

    def schema_change(self) -> str:
        """A column that the contract does not name comes or goes."""
        self._extra = not self._extra
        return f"alter table orders {'add column extra text' if self._extra else 'drop extra'}"

    def _statement(self, keys: set[int]) -> str:
        chosen = self._random.random()
        if not keys or chosen < 0.25:
            key = self._fresh(keys)
            keys.add(key)
            values = ", ".join(self._value(name) for name in self.columns)
            names = ", ".join(self.columns)
            return f"insert into orders (id, n, {names}) values ({key}, 0, {values})"
        key = self._random.choice(sorted(keys))
        if chosen < 0.55:
            return f"update orders set n = n + 1 where id = {key}"
        if chosen < 0.75:
            name = self._random.choice(list(self.columns))
            return f"update orders set {name} = {self._value(name)} where id = {key}"
        if chosen < 0.9:
            keys.remove(key)
            new = self._fresh(keys)
            keys.add(new)
            return f"update orders set id = {new}, n = n + 1 where id = {key}"
        keys.remove(key)
        return f"delete from orders where id = {key}"

    def _fresh(self, keys: set[int]) -> int:
        return self._random.choice([key for key in range(40) if key not in keys])

    def _value(self, name: str) -> str:
        type_ = self.columns[name]
        if name != self._required and self._random.random() < 0.1:
            return "null"
        values: Any = TYPES[type_]
        # A large value more often than not.
        value = values[-1] if self._random.random() < 0.6 else self._random.choice(values)
        return f"({value})::{type_}"
