"""Private parts of PyIceberg that the lake uses, behind public names.

PyIceberg has no public interface for them. Every other module of the lake calls PyIceberg's public
interface or this module. Two kinds of use cannot move here, because they override PyIceberg's hooks
in a subclass: the commit times in `monotonic_catalog`, and the manifests of a change in
`snapshot_producer`. `tests/contract/test_catalog.py` fails when one of these parts changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table.update.snapshot import (
    _ManifestMergeManager as ManifestMergeManager,
)
from pyiceberg.table.update.snapshot import (
    _MergeAppendFiles as MergeAppendFiles,
)

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO
    from pyiceberg.io.fileformat import FileFormatWriter
    from pyiceberg.manifest import DataFile
    from pyiceberg.typedef import Properties, Record
    from requests import Response

__all__ = [
    "ManifestMergeManager",
    "MergeAppendFiles",
    "data_file_values",
    "load_table_io",
    "next_metadata_number",
    "post",
    "record_values",
    "written_bytes",
]


def load_table_io(
    catalog: SqlCatalog, location: str, properties: Properties | None = None
) -> FileIO:
    """Return the file access for a table's location, with the table's properties if given."""
    return catalog._load_file_io(properties or {}, location)


def next_metadata_number(catalog: SqlCatalog, pointer: str) -> int:
    """Return the number of the metadata file that follows the one at a pointer."""
    return catalog._parse_metadata_version(pointer) + 1


def post(catalog: RestCatalog, path: str, content: bytes) -> Response:
    """Send a POST request to a path of a REST catalog, with the catalog's authentication."""
    return catalog._session.post(catalog.url(path), data=content)


def written_bytes(writer: FileFormatWriter) -> int:
    """Return how many bytes a data file's writer has written so far."""
    stream: Any = writer._fos  # type: ignore[attr-defined]
    return int(stream.tell())


def data_file_values(file: DataFile) -> list[Any]:
    """Return the fields of a data file in the order of its schema."""
    return list(file._data)


def record_values(record: Record) -> list[Any]:
    """Return the values of a record in order."""
    return list(record._data)
