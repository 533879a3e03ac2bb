"""ClickBench's queries over both protocols: POST /query in DuckDB's dialect, and Trino's protocol.

    python -m benchmarks.clickbench --texts FOLDER

The folder has `create.sql`, which makes the table `hits` in DuckDB, and the texts `duckdb.sql` and
`trino.sql`, one query a line. Rows are random. It fails when a query is refused, or when its answer
is not what DuckDB itself gives for DuckDB's text. Which of equal rows a LIMIT keeps is open, so
rows are compared without it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import httpx
from tests.integration.serve import serving

import thermocline as tc
from benchmarks.measure import machine
from benchmarks.tpcds import SETTINGS, have_same_rows, run_query
from thermocline.lake import Lake

SCHEMA = "tpcds"
"""The schema that `benchmarks.tpcds.run_query` asks in."""
_LIMIT = re.compile(r" LIMIT \d+( OFFSET \d+)?$| OFFSET \d+ LIMIT \d+$")
_RANDOM = {
    "BIGINT": "CAST(random() * 1e6 AS BIGINT)",
    "INTEGER": "CASE WHEN random() < 0.2 THEN 62 ELSE CAST(random() * 500 AS INTEGER) END",
    "SMALLINT": "CASE WHEN random() < 0.6 THEN 0 ELSE CAST(random() * 9 AS SMALLINT) END",
    "VARCHAR": (
        "CASE WHEN random() < 0.3 THEN '' ELSE 'http' || ['', 's'][1 + CAST(random() AS INT)] || "
        "'://' || ['www.', ''][1 + CAST(random() AS INT)] || ['google', 'example'][1 + CAST("
        "random() AS INT)] || CAST(random() * 50 AS INT) || '.test/Google' || "
        "CAST(random() * 9 AS INT) END"
    ),
    "TIMESTAMP": "TIMESTAMP '2013-07-01' + INTERVAL (CAST(random() * 2600000 AS INT)) SECOND",
    "DATE": "DATE '2013-07-01' + CAST(random() * 30 AS INT)",
}  # fmt: skip


def build(project: Path, create: str, rows: int) -> duckdb.DuckDBPyConnection:
    """Make a lake with the table, and the same table in DuckDB."""
    plain = duckdb.connect()
    plain.execute("SELECT setseed(0.5)")
    plain.execute(create)
    columns = [each[:2] for each in plain.execute("DESCRIBE hits").fetchall()]
    values = ", ".join(f'{_RANDOM[kind]} AS "{name}"' for name, kind in columns)
    plain.execute(f"INSERT INTO hits SELECT {values} FROM range({rows})")
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(tc.open(project).settings)
    lake.catalog.create_namespace(SCHEMA)
    found = plain.execute("FROM hits").to_arrow_table()
    lake.catalog.create_table(f"{SCHEMA}.hits", found.schema).append(found)
    lake.close()
    return plain


def over_http(url: str, sql: str) -> list[list[Any]] | str:
    """The rows of POST /query, or why there are none."""
    reply = httpx.post(f"{url}/query", json={"sql": sql, "timeout": 60}, timeout=90)
    found = reply.json()
    return found["rows"] if "rows" in found else f"{found['error']['cause']}"[:160]


def rows_of(plain: duckdb.DuckDBPyConnection, sql: str) -> list[list[Any]]:
    """What DuckDB gives."""
    return [list(row) for row in plain.execute(sql).fetchall()]


def main() -> int:
    """Ask over both protocols, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    given = parser.parse_args()
    print(machine())
    lines = {
        name: [
            line.strip().rstrip(";")
            for line in (given.texts / f"{name}.sql").open()
            if line.strip()
        ]
        for name in ("duckdb", "trino")
    }
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="clickbench-") as folder:
        project = Path(folder) / "lake"
        plain = build(project, (given.texts / "create.sql").read_text(), given.rows)
        with serving.started(project) as ours:
            for number, (duck, trino) in enumerate(zip(*lines.values(), strict=True), start=1):
                verdicts = {
                    "query": _asked(lambda sql: over_http(ours.url, sql), plain, duck, duck),
                    "trino": _asked(
                        lambda sql: run_query(ours.port, "lake", sql), plain, duck, trino
                    ),
                }
                for protocol, verdict in verdicts.items():
                    wrong += verdict is not None
                    if verdict:
                        print(f"{number:02} {protocol}: {verdict}")
    print(f"{2 * len(lines['duckdb']) - wrong} of {2 * len(lines['duckdb'])} answered right")
    return 1 if wrong else 0


def _asked(
    ask: Callable[[str], list[list[Any]] | str],
    plain: duckdb.DuckDBPyConnection,
    duck: str,
    text: str,
) -> str | None:
    """What is wrong with the answers to a text and to the same without its LIMIT, if anything."""
    for cut in (False, True):
        one, other = ((_LIMIT.sub("", t) if cut else t) for t in (text, duck))
        wanted = rows_of(plain, other)
        found = ask(one.replace("hits", f"{SCHEMA}.hits", 1))
        if isinstance(found, str):
            return f"refused: {found}"
        if len(found) != len(wanted):
            return f"{len(found)} rows and not {len(wanted)}"
        if (cut or not _LIMIT.search(text)) and not have_same_rows(_plain(found), _plain(wanted)):
            return f"different: {found[:1]} and {wanted[:1]}"
    return None


def _plain(rows: list[list[Any]]) -> list[list[Any]]:
    """Rows whose times are texts of one form."""
    return [
        [v if isinstance(v, int | float) else str(v).replace("T", " ").removesuffix(".000000")
         for v in row] for row in rows
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
