"""Check the answers: recompute them from the rows, snapshot by snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import duckdb
import pyarrow as pa

from benchmarks.serving.lake import TABLE
from benchmarks.serving.load import Heard, digest
from thermocline.serve.rows.encode import encode


def wrong(
    heard: Iterable[Heard],
    questions: list[str],
    first: tuple[str, pa.Table],
    commits: Mapping[str, pa.Table],
) -> tuple[int, int]:
    """Return how many answers differ from the rows of their snapshot, and how many were compared.

    `first` is the snapshot and the rows at the beginning, `commits` the rows that were added
    by each later one.
    """
    answers: dict[str, dict[int, set[bytes]]] = {}
    counted: dict[tuple[str, int, bytes], int] = {}
    for each in heard:
        if each.status == 200:
            answers.setdefault(each.snapshot, {}).setdefault(each.question, set()).add(each.digest)
            key = (each.snapshot, each.question, each.digest)
            counted[key] = counted.get(key, 0) + 1
    mistaken = compared = 0
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA silver")
    connection.register("first_rows", first[1])
    connection.execute(f"CREATE TABLE {TABLE} AS SELECT * FROM first_rows")
    for snapshot, added in [(first[0], None), *commits.items()]:
        if added is not None:
            connection.register("added_rows", added)
            connection.execute(f"INSERT INTO {TABLE} SELECT * FROM added_rows")
        for number, digests in answers.pop(snapshot, {}).items():
            table = connection.execute(questions[number]).to_arrow_table()
            right = digest([json.loads(line) for line in encode(table, "json")[1].splitlines()])
            for given in digests:
                times = counted[(snapshot, number, given)]
                compared += times
                mistaken += times if given != right else 0
    # An answer from an unknown snapshot is always wrong.
    strays = sum(len(each) for questions_ in answers.values() for each in questions_.values())
    return mistaken + strays, compared + strays
