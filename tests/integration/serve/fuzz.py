"""Texts that are nearly queries, sent to a server: it answers or refuses each, and stays up.

python -m tests.integration.serve.fuzz URL --token T --count 100000 --seed 7
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

SEEDS = [
    "select count(*) as n, sum(amount) from silver.orders where ordered_at >= current_date - 2",
    "select o.*, city from silver.orders o left join silver.customers c using (customer_id) "
    "where ordered_at between timestamp '2026-01-01' and now() order by 1 desc nulls last limit 7",
    "with a as (select customer_id, row_number() over (partition by customer_id order by "
    "ordered_at desc) as n from silver.orders) select n, count(*) from a group by n having n > 1",
    "select day, revenue, lag(revenue) over (order by day) from gold.revenue "
    "where day in (date '2026-11-01', current_date) union all select null, 1.5, -2",
    "select case when note like '%“%' escape '!' then left(note, 3) || 'é' end, "
    "cast(amount as varchar), date_trunc('day', ordered_at) from silver.orders where not note = ''",
    "select {'a': [1, 2, null], 'b': x'ff'} as s, list_transform([1, 2], x -> x + 1), interval 3 "
    "day, unnest([1, 2]) from (values (1, 'a'), (2, 'b')) v(i, t) where exists (select 1)",
    "select min(a.note) from silver.orders a, silver.customers b where a.customer_id = "
    "b.customer_id and a.ordered_at >= now() - interval 1 day and city is not distinct from null",
]
STATEMENTS = [
    *SEEDS[:4],
    "select table_name from information_schema.tables where table_schema = 'silver'",
    "show columns from silver.orders like 'o%'",
    "explain (type validate) select 1",
    "prepare p from select ? from silver.orders",
    "execute immediate 'select ?' using 1",
    "set session lake.max_staleness = '5s'",
]
PIECES = [
    *("'", '"', "`", "$$", "$1", "?", "/*", "*/", "--", ";", "\\", "(", ")", "[", "]", "{", "}"),
    *("::", "->", ":=", "..", "@", "#", "%", "\0", "\u202e", "\ufeff", "\U0001f600", "ﬀ", "\r\n"),
    *("select", "from", "recursive", "lateral", "pivot", "unnest", "distinct on", "qualify"),
    *("group by all", "order by all", "limit -1", "offset 1e9", "as of", "tablesample 10%", "asof"),
    *("null", "1e400", "-0", "0x1F", "99999999999999999999999999999999999999999", "1_000", "nan"),
    *("'2026-13-45'::date", "interval '1' century", "timestamp 'infinity'", "columns('.*')", "*"),
    *("read_csv('/etc/passwd')", "getenv('HOME')", "range(10)", "repeat('x', 1000000)", "into t"),
    *("attach", "pragma", "for update", "exclude", "replace", "natural join", "cross join"),
]
_WORD = re.compile(r"\s+|\w+|.", re.DOTALL)


class Fuzzer:
    """Spoils queries by chance; the same ones from the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def request(self) -> dict[str, Any]:
        """A request to one of the doors through which SQL comes in."""
        if self._chance.random() < 0.05:
            noise = self._chance.randbytes(self._chance.randrange(200))
            return self._posted(self._chance.choice(["/v1/statement", "/query"]), noise)
        door = self._chance.choice(["/query", "/query", "/explain", "/v1/statement"])
        text = self.text(STATEMENTS if door == "/v1/statement" else SEEDS)
        if door == "/v1/statement":
            return self._posted(door, text.encode("utf-8", "surrogatepass"))
        # Spark's dialect is only explained: it would be asked of a JVM.
        dialects = ("duckdb", "trino", "spark")[: 2 if door == "/query" else 3]
        asked = {"sql": text, "dialect": self._chance.choice(dialects), "timeout": 2}
        asked["format"] = self._chance.choice(["json", "csv", "arrow"])
        return self._posted(door, json.dumps(asked).encode())

    def text(self, seeds: list[str]) -> str:
        """A query in which names and numbers changed places, and that was perhaps spoilt."""
        words = _WORD.findall(self._chance.choice(seeds))
        for _ in range(self._chance.choice([0, 0, 1, 2, 5])):
            at = self._chance.randrange(len(words))
            same = [w for w in _WORD.findall(" ".join(seeds)) if _kind(w) == _kind(words[at])]
            words[at] = self._chance.choice(same)
        for _ in range(self._chance.choice([0, 0, 0, 1, 2, 6, 12])):
            at = self._chance.randrange(len(words) + 1)
            match self._chance.randrange(6):
                case 0:
                    del words[at : at + self._chance.randrange(1, 4)]
                case 1:
                    words.insert(at, f" {self._chance.choice(PIECES)} ")
                case 2:
                    words[at:at] = words[at : at + 3] * self._chance.choice([1, 2, 30])
                case 3:
                    words.insert(at, self._chance.choice(words or [""]))
                case 4:
                    words[at:] = _WORD.findall(self._chance.choice(seeds))[at:]
                case 5:
                    words.insert(at, chr(self._chance.randrange(1, 0x3000)))
        return "".join(words)

    @staticmethod
    def _posted(path: str, body: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if path == "/v1/statement":
            headers = {"X-Trino-User": "fuzz", "X-Trino-Catalog": "lake", "X-Trino-Schema": "gold"}
        return {"method": "POST", "url": path, "content": body, "headers": headers}


def _kind(word: str) -> str:
    return "number" if word.isdecimal() else "name" if word.isidentifier() else word


def run(url: str, token: str | None, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Send so many requests. How they ended, and what ended as nothing should."""
    fuzzer = Fuzzer(seed)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    ends: Counter[str] = Counter()
    wrong: list[str] = []

    def send(request: dict[str, Any]) -> None:
        reply = client.request(**request)
        if reply.status_code == 200 and request["url"] == "/v1/statement":
            end = _last_page(client, reply.json(), request["headers"])
        else:
            end = str(reply.status_code)
        ends[end] += 1
        if end in ("500", "GENERIC_INTERNAL_ERROR"):
            wrong.append(f"{end} {request['url']} {request['content']!r}")

    with (
        httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        for _ in threads.map(send, (fuzzer.request() for _ in range(count))):
            pass
    return ends, wrong


def _last_page(client: httpx.Client, page: dict[str, Any], headers: dict[str, str]) -> str:
    *_, last = pages(client, page, headers)
    return str(last["error"]["errorName"]) if "error" in last else "200"


def pages(
    client: httpx.Client, page: dict[str, Any], headers: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """A statement's pages, from its first to its last."""
    yield page
    while "nextUri" in page:
        page = client.get(page["nextUri"], headers=headers).json()
        yield page


def main() -> None:
    """Fuzz a server that runs, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--token")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrong", type=Path, help="where to write what went wrong")
    given = parser.parse_args()
    ends, wrong = run(given.url, given.token, given.count, given.seed)
    print(dict(ends.most_common()))
    print(f"{len(wrong)} unhandled")
    if given.wrong:
        given.wrong.write_text("\n".join(wrong))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
