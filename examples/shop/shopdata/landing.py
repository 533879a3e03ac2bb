"""Landing files: Arrow tables out as JSON lines, CSV or Parquet, byte for byte repeatable."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

ROLE = "role"  # what a row is in the story; never written
MALFORMED = "malformed"  # the role of a row that is cut short, where the format allows it


def write(path: Path, tables: Iterable[pa.Table]) -> Counter[str]:
    """Write the tables into one file of the kind its name says; count the rows by role.

    The file appears under its name only when it is whole, so that nobody ingests half of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    roles: Counter[str] = Counter()
    with part.open("wb") as raw:
        sink = _sink(raw, path.name)
        for table in tables:
            sink.add(table)
            counted = table[ROLE].value_counts().to_pylist()
            roles.update({entry["values"]: entry["counts"] for entry in counted})
        sink.close()
    part.replace(path)
    return roles


class _JsonLines:
    def __init__(self, out: IO[bytes]) -> None:
        self.out = out

    def add(self, table: pa.Table) -> None:
        cut = pc.equal(table[ROLE].combine_chunks(), MALFORMED)
        lines = _json(table.drop_columns([ROLE]).to_struct_array().combine_chunks())
        lines = pc.if_else(cut, pc.utf8_slice_codeunits(lines, 0, 150), lines)
        lines = pc.binary_join_element_wise(lines, "", "\n")
        _, offsets, data = lines.buffers()  # the texts lie one after another: written as they are
        ends = memoryview(offsets).cast("i")
        first, last = ends[lines.offset], ends[lines.offset + len(lines)]
        self.out.write(memoryview(data)[first:last])

    def close(self) -> None:
        if isinstance(self.out, gzip.GzipFile):
            self.out.close()


class _Csv:
    def __init__(self, out: IO[bytes]) -> None:
        self.out = out
        self.header = True

    def add(self, table: pa.Table) -> None:
        broken = pc.equal(table[ROLE], MALFORMED)
        rows = table.filter(pc.invert(broken)).drop_columns([ROLE])
        texts = [
            _stamp(column.combine_chunks()) if pa.types.is_timestamp(column.type) else column
            for column in rows.columns
        ]
        options = pacsv.WriteOptions(include_header=self.header)
        pacsv.write_csv(pa.table(texts, rows.column_names), self.out, options)
        self.header = False
        for row in table.filter(broken).to_pylist():  # a cell too many, as from a stray comma
            self.out.write(f"{row['product_id']},x{',' * table.num_columns}\n".encode())

    def close(self) -> None:
        pass


class _Parquet:
    def __init__(self, out: IO[bytes]) -> None:
        self.out = out
        self.writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        table = table.drop_columns([ROLE])
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.out, table.schema, compression="zstd")
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _sink(raw: IO[bytes], name: str) -> Any:
    if name.endswith(".parquet"):
        return _Parquet(raw)
    if name.endswith(".csv"):
        return _Csv(raw)
    if name.endswith(".gz"):  # no name and no time in the header: the same bytes every time
        return _JsonLines(gzip.GzipFile("", "wb", 6, raw, mtime=0))  # type: ignore[arg-type]
    return _JsonLines(raw)


def _stamp(column: pa.Array) -> pa.Array:
    """ISO-8601 in UTC with microseconds."""
    return pc.strftime(column.cast(pa.timestamp("us")), format="%Y-%m-%dT%H:%M:%SZ")


def _json(column: pa.Array) -> pa.Array:
    """A column as JSON texts. The shop's strings hold nothing that JSON would have to escape."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts: list[Any] = []
        for position, field in enumerate(kind):
            parts += [f'{"," if position else "{"}"{field.name}":', _json(column.field(position))]
        return pc.binary_join_element_wise(*parts, "}", "")
    if pa.types.is_list(kind):
        inner = pa.ListArray.from_arrays(column.offsets, _json(column.values))
        return pc.binary_join_element_wise("[", pc.binary_join(inner, ","), "]", "")
    if pa.types.is_timestamp(kind):
        texts = pc.binary_join_element_wise('"', _stamp(column), '"', "")
    elif pa.types.is_string(kind):
        texts = pc.binary_join_element_wise('"', column, '"', "")
    else:
        texts = column.cast(pa.string())
    return pc.fill_null(texts, "null")
