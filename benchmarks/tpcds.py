"""TPC-DS over Trino's protocol: compare our answers with those of a real Trino.

    python -m benchmarks.tpcds --scale 0.01 --texts FOLDER

The data and the 99 queries come from DuckDB's extension; a folder may provide other queries, one
per file (`${database}.${schema}.` before a table is removed). It fails when an answer differs from
that of the real Trino, which reads the same lake.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import trino.dbapi
import trino.exceptions
from tests.integration.serve import serving
from tests.servers import trino as real

import thermocline as tc
from benchmarks.measure import machine
from thermocline.engine.duck import find_extension
from thermocline.lake import Lake

SCHEMA = "tpcds"
SETTINGS = """\
[lake]
name = "tpcds"
[serve]
nodes = 1
hot_window = "1d"
direct_limit = "10GB"
verify_share = 0.0
max_seconds = 120
"""


def build(project: Path, scale: float) -> dict[str, str]:
    """Create a lake with all tables, and return the extension's queries."""
    source = duckdb.connect()
    source.execute(f"LOAD '{find_extension('tpcds')}'")
    source.execute(f"CALL dsdgen(sf={scale})")
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(tc.open(project).settings)
    lake.catalog.create_namespace(SCHEMA)
    for (name,) in source.execute("SHOW TABLES").fetchall():
        rows = source.execute(f"FROM {name}").to_arrow_table()
        lake.catalog.create_table(f"{SCHEMA}.{name}", rows.schema).append(rows)
    lake.close()
    listed = source.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall()
    return {f"q{number:02}": text for number, text in listed}


def list_queries(folder: Path | None, own: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the queries, by name, over the tables of the schema."""
    found = dict(own) if folder is None else {
        path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.sql"))
    }  # fmt: skip
    for name, text in found.items():
        yield name, text.replace("${database}.${schema}.", "").strip().rstrip(";")


def run_query(port: int, catalog: str, sql: str) -> list[list[Any]] | str:
    """Return the rows, or the error's text."""
    connection = trino.dbapi.connect(
        host="127.0.0.1", port=port, user="ann", catalog=catalog, schema=SCHEMA
    )
    try:
        found: list[list[Any]] = connection.cursor().execute(sql).fetchall()
    except trino.exceptions.TrinoQueryError as error:
        return f"{error.error_name}: {error.message}"[:160]
    return found


def have_same_rows(ours: list[list[Any]], theirs: list[list[Any]]) -> bool:
    """Return whether two answers have the same rows, in any order, with approximate fractions."""
    if len(ours) != len(theirs):
        return False
    pairs = zip(sorted(ours, key=_sortable), sorted(theirs, key=_sortable), strict=True)
    return all(_equal(a, b) for mine, other in pairs for a, b in zip(mine, other, strict=True))


def _sortable(row: list[Any]) -> list[tuple[bool, str]]:
    return [(isinstance(v, float), f"{v:.6e}" if isinstance(v, float) else str(v)) for v in row]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return one is not None and other is not None and math.isclose(
            float(one), float(other), rel_tol=1e-9, abs_tol=1e-9
        )  # fmt: skip
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return one is not None and other is not None and Decimal(one) == Decimal(other)
    return bool(one == other)


def main() -> int:
    """Query both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--texts", type=Path, help="a folder of texts instead of DuckDB's")
    arguments = parser.parse_args()
    if missing := real.missing():
        print(missing)
        return 1
    print(machine())
    with tempfile.TemporaryDirectory(prefix="tpcds-") as folder:
        project = Path(folder) / "lake"
        own = build(project, arguments.scale)
        settings = tc.open(project).settings
        trino_folder = Path(folder) / "trino"
        trino_folder.mkdir()
        with serving.started(project) as ours, real.serve(trino_folder, settings) as theirs:
            port = int(theirs.url.rpartition(":")[2])
            answered = refused = different = failed = 0
            for name, sql in list_queries(arguments.texts, own):
                found = run_query(ours.port, "lake", sql)
                expected = run_query(port, theirs.catalog, sql)
                if isinstance(expected, str):
                    failed += isinstance(found, str)
                    different += not isinstance(found, str)
                    print(f"{name}  Trino itself: {expected}   ours: {str(found)[:80]}")
                elif isinstance(found, str):
                    refused += 1
                    print(f"{name}  refused: {found}")
                elif not have_same_rows(found, expected):
                    different += 1
                    print(f"{name}  different: {found[:2]} and {expected[:2]}")
                else:
                    answered += 1
    print(
        f"{answered} answered as Trino does, {refused} refused, {different} different, "
        f"{failed} that Trino cannot answer either"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
