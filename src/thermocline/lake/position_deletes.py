"""Rewrite position-delete files, whose rows name data files by path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

PATH_ID = 2147483546
"""The field id of the path in the specification."""
_PATH, _POSITION = "file_path", "pos"


@dataclass(frozen=True)
class RewrittenDeletes:
    """A position-delete file with other paths, and its attributes in manifests."""

    content: bytes
    size: int
    low: str | None
    high: str | None
    offsets: tuple[int, ...]
    location: str = ""


def rewrite_paths(content: bytes, map_location: Callable[[str], str]) -> RewrittenDeletes:
    """Rewrite a position-delete file with the new location of each data file.

    Other columns, the schema and its metadata stay; rows are sorted as the specification requires.
    Raise ValueError for a file with another layout.
    """
    parquet = pq.ParquetFile(BytesIO(content))
    rows = parquet.read()
    if _PATH not in rows.column_names or _POSITION not in rows.column_names:
        raise ValueError("it has no paths and positions")
    index = rows.column_names.index(_PATH)
    field = rows.schema.field(index)
    paths = rows.column(index).combine_chunks().cast(pa.string()).dictionary_encode()
    new = pa.array([map_location(path) for path in paths.dictionary.to_pylist()], pa.string())
    column = pa.DictionaryArray.from_arrays(paths.indices, new).cast(field.type)
    result = rows.set_column(index, field, column)
    result = result.sort_by([(_PATH, "ascending"), (_POSITION, "ascending")])
    out = BytesIO()
    groups = [parquet.metadata.row_group(n) for n in range(parquet.metadata.num_row_groups)]
    codec = groups[0].column(0).compression if groups else "ZSTD"
    pq.write_table(result, out, compression="NONE" if codec == "UNCOMPRESSED" else codec)
    ends = sorted(new.to_pylist()) or [None]
    content = out.getvalue()
    return RewrittenDeletes(content, len(content), ends[0], ends[-1], _offsets(out))


def _offsets(out: BytesIO) -> tuple[int, ...]:
    """Return the offsets of the row groups."""
    metadata = pq.ParquetFile(out).metadata
    first = [metadata.row_group(n).column(0) for n in range(metadata.num_row_groups)]
    return tuple(each.dictionary_page_offset or each.data_page_offset for each in first)
