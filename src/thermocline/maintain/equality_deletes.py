"""The rows that equality deletes delete, as positions in a data file.

Only types whose equality every engine agrees on are compared; a delete by any other column is
refused, and so is one by a column that the table no longer has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import Permanent
from thermocline.lake.data_file_reader import NO_POSITIONS, DataFileReader, Positions

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from thermocline.lake.live_files import LiveFile

_EXACT_TYPES = (
    BinaryType, BooleanType, DateType, DecimalType, FixedType, IntegerType, LongType, StringType,
    TimestampType, TimestamptzType, TimeType, UUIDType,
)  # fmt: skip


class EqualityDeletes:
    """Finds the rows of data files of one table that equality deletes delete."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._read: dict[str, pa.Table] = {}

    def find_positions(self, live: LiveFile) -> Positions:
        """Return the sorted positions of the deleted rows of a data file."""
        by_columns: dict[tuple[int, ...], list[DataFile]] = defaultdict(list)
        for delete in live.equalities:
            by_columns[tuple(sorted(delete.equality_ids or ()))].append(delete)
        found = [self._match(live.file, ids, some) for ids, some in by_columns.items()]
        return np.unique(np.concatenate([NO_POSITIONS, *found]))

    def _match(
        self, file: DataFile, ids: tuple[int, ...], deletes: Sequence[DataFile]
    ) -> Positions:
        schema = self._key_schema(ids)
        keys = pa.concat_tables([self._read_keys(each, schema) for each in deletes])
        reader = DataFileReader(self._table, schema)
        parts = [
            rows.append_column("\0position", pa.array(positions))
            for positions, rows in reader.live_parts(file, NO_POSITIONS)
        ]
        if not parts:
            return NO_POSITIONS
        names = [f"k{number}" for number in range(len(ids))]
        self._duck.register("keys", keys.rename_columns(names))
        self._duck.register("rows", pa.concat_tables(parts).rename_columns([*names, "position"]))
        same = " AND ".join(
            f"keys.{quote_identifier(n)} IS NOT DISTINCT FROM rows.{quote_identifier(n)}"
            for n in names
        )
        found = self._duck.execute(f"SELECT position FROM rows SEMI JOIN keys ON {same}")
        return np.sort(np.asarray(found.fetchnumpy()["position"], dtype=np.int64))

    def _key_schema(self, ids: tuple[int, ...]) -> Schema:
        columns = {field.field_id: field for field in self._table.schema().fields}
        for number in ids:
            if number not in columns or not isinstance(columns[number].field_type, _EXACT_TYPES):
                name = columns[number].name if number in columns else f"with id {number}"
                raise Permanent(
                    f"{'.'.join(self._table.name())} has equality deletes by the column {name},"
                    " which cannot be applied here.",
                    "Rewrite its files with Spark: CALL system.rewrite_data_files.",
                )
        if not ids:
            raise Permanent(
                f"{'.'.join(self._table.name())} has an equality delete without columns.",
                "Rewrite its files with Spark: CALL system.rewrite_data_files.",
            )
        return Schema(*(columns[number] for number in ids))

    def _read_keys(self, delete: DataFile, schema: Schema) -> pa.Table:
        path = str(delete.file_path)
        if path not in self._read:
            reader = DataFileReader(self._table, schema)
            self._read[path] = reader.live(delete, NO_POSITIONS)
        return self._read[path]

    @cached_property
    def _duck(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        return connection
