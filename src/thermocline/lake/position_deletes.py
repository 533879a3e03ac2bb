"""Position-delete files: their rows name the data files whose rows are deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

PATH_ID = 2147483546
"""The field that the specification gives the path."""
_PATH, _POSITION = "file_path", "pos"


@dataclass(frozen=True)
class Rewritten:
    """A position-delete file with other paths, and what manifests say of it."""

    content: bytes
    size: int
    low: str | None
    high: str | None
    offsets: tuple[int, ...]
    location: str = ""


def rewritten(content: bytes, moved: Callable[[str], str]) -> Rewritten:
    """Return a position-delete file with the new location of every data file that it names.

    Its other columns, its schema and what writers noted in it stay; rows are in the order that the
    specification asks for. Raises ValueError for a file of another form.
    """
    parquet = pq.ParquetFile(BytesIO(content))
    rows = parquet.read()
    if _PATH not in rows.column_names or _POSITION not in rows.column_names:
        raise ValueError("it has no paths and positions")
    place = rows.column_names.index(_PATH)
    field = rows.schema.field(place)
    paths = rows.column(place).combine_chunks().cast(pa.string()).dictionary_encode()
    new = pa.array([moved(path) for path in paths.dictionary.to_pylist()], pa.string())
    column = pa.DictionaryArray.from_arrays(paths.indices, new).cast(field.type)
    made = rows.set_column(place, field, column)
    made = made.sort_by([(_PATH, "ascending"), (_POSITION, "ascending")])
    out = BytesIO()
    groups = [parquet.metadata.row_group(n) for n in range(parquet.metadata.num_row_groups)]
    codec = groups[0].column(0).compression if groups else "ZSTD"
    pq.write_table(made, out, compression="NONE" if codec == "UNCOMPRESSED" else codec)
    ends = sorted(new.to_pylist()) or [None]
    content = out.getvalue()
    return Rewritten(content, len(content), ends[0], ends[-1], _offsets(out))


def _offsets(out: BytesIO) -> tuple[int, ...]:
    """Where the row groups begin."""
    metadata = pq.ParquetFile(out).metadata
    first = [metadata.row_group(n).column(0) for n in range(metadata.num_row_groups)]
    return tuple(each.dictionary_page_offset or each.data_page_offset for each in first)
