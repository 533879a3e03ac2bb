"""What a table's metadata refers to, and the same metadata with other references.

A table names its files by absolute locations: in its metadata file, in manifest lists, in
manifests, in bounds and rows of position-delete files. Here all of them are found, and written
again with the location that each is to have. What is not known to hold no location is refused: an
unknown field may name a file that would be read from where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from pyiceberg.manifest import DATA_FILE_TYPE, DataFile

from thermocline.errors import Permanent
from thermocline.lake import avro, puffin
from thermocline.lake.avro import AvroFile
from thermocline.lake.locations import normalize_location
from thermocline.lake.position_deletes import PATH_ID, Rewritten, rewritten

T = TypeVar("T")
Raw = Mapping[str, Any]

PATH_PROPERTIES = frozenset(
    {"write.data.path", "write.metadata.path", "write.object-storage.path",
     "write.folder-storage.path"}
)  # fmt: skip
"""The properties of a table that say where it writes."""
_TABLE_FIELDS = frozenset(
    {"format-version", "table-uuid", "location", "last-sequence-number", "last-updated-ms",
     "last-column-id", "current-schema-id", "schemas", "default-spec-id", "partition-specs",
     "last-partition-id", "default-sort-order-id", "sort-orders", "properties",
     "current-snapshot-id", "refs", "snapshots", "snapshot-log", "metadata-log", "statistics",
     "partition-statistics"}
)  # fmt: skip
_SNAPSHOT_FIELDS = frozenset(
    {"snapshot-id", "parent-snapshot-id", "sequence-number", "timestamp-ms", "manifest-list",
     "summary", "schema-id"}
)  # fmt: skip
_STATISTICS_FIELDS = frozenset(
    {"snapshot-id", "statistics-path", "file-size-in-bytes", "file-footer-size-in-bytes",
     "blob-metadata"}
)  # fmt: skip
_MANIFEST_LIST_FIELDS = frozenset(
    {"manifest_path", "manifest_length", "partition_spec_id", "content", "sequence_number",
     "min_sequence_number", "added_snapshot_id", "added_files_count", "existing_files_count",
     "deleted_files_count", "added_data_files_count", "existing_data_files_count",
     "deleted_data_files_count", "added_rows_count", "existing_rows_count", "deleted_rows_count",
     "partitions"}
)  # fmt: skip
_ENTRY_FIELDS = frozenset(
    {"status", "snapshot_id", "sequence_number", "file_sequence_number", "data_file"}
)  # fmt: skip
_DATA_FILE_FIELDS = frozenset(
    {"content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes",
     "block_size_in_bytes", "column_sizes", "value_counts", "null_value_counts",
     "nan_value_counts", "distinct_counts", "lower_bounds", "upper_bounds", "split_offsets",
     "equality_ids", "sort_order_id", "spec_id", "referenced_data_file"}
)  # fmt: skip
_DATA, _POSITIONS, _EQUALITY = 0, 1, 2
_DATA_FILE_NAMES = [each.name for each in DATA_FILE_TYPE[2].fields]
_BOUNDS = ("lower_bounds", "upper_bounds")
_DELETED_STATUS = 2


class Unmovable(Permanent):
    """Something of a table is not understood, so its references cannot be rewritten."""

    code = "unmovable"
    exit_code = 2

    def __init__(self, table: str, what: str) -> None:
        super().__init__(
            f"{table} {what}.",
            "Nothing was changed. Rewrite the table where it is, or leave this out of it.",
            table=table,
        )


class LocationMap(Protocol):
    """Where files are to be."""

    def moved(self, location: str) -> str:
        """The new location of a file that stays as it is; ValueError for one out of place."""

    def written(self, location: str) -> str:
        """The location for what takes the place of a file of metadata, under a new name."""

    def names_old(self, text: str) -> bool:
        """Whether a text names a place that is to be left."""


@dataclass
class RewrittenReferences:
    """What a table's metadata led to."""

    raw: dict[str, Any] = field(default_factory=dict)
    """The metadata file with the new references."""
    kept: dict[str, int] = field(default_factory=dict)
    """Files that stay as they are, by their old location, with their sizes."""
    replaced: set[str] = field(default_factory=set)
    """The old locations of files that were written again."""
    logged: set[str] = field(default_factory=set)
    """Earlier metadata files, which the new metadata no longer names."""


class ReferenceRewriter:
    """Writes one table's metadata again, with other references.

    `read` gives the bytes of a file by its old location and `put` takes those of a new one. Files
    are written after all that they refer to; a file that several refer to is written once.
    """

    def __init__(
        self,
        table: str,
        places: LocationMap,
        read: Callable[[str], bytes],
        put: Callable[[str, bytes], None],
    ) -> None:
        self.table = table
        self.found = RewrittenReferences()
        self._places, self._read, self._put = places, read, put
        self._manifests: dict[str, tuple[str, int]] = {}
        self._deletes: dict[str, Rewritten] = {}

    def rewrite(self, raw: Raw) -> RewrittenReferences:
        """Write what a metadata file refers to; gives its own new content, which is not written."""
        if raw.get("format-version") != 2:
            raise self._refused(f"has format version {raw.get('format-version')}; 2 is understood")
        self._only("its metadata", raw, _TABLE_FIELDS)
        new = dict(raw) | {"location": self._moved(raw["location"]), "metadata-log": []}
        new["properties"] = self._properties(raw.get("properties") or {})
        new["snapshots"] = [self._snapshot(each) for each in raw.get("snapshots") or ()]
        for name in ("statistics", "partition-statistics"):
            if raw.get(name):
                new[name] = [self._statistics(each) for each in raw[name]]
        self.found.raw = new
        self.found.logged.update(e["metadata-file"] for e in raw.get("metadata-log") or ())
        return self.found

    def delete_file(self, location: str) -> Rewritten:
        """Write a position-delete file again, once."""
        if location not in self._deletes:
            made = self._understood(location, lambda: rewritten(self._read(location), self._moved))
            target = self._places.written(location)
            self._write(location, target, made.content)
            self._deletes[location] = replace(made, content=b"", location=target)
        return self._deletes[location]

    def data_file(self, file: DataFile) -> DataFile:
        """A file that no snapshot has yet, as PyIceberg's object, at its new location."""
        values: dict[str, Any] = {
            name: (0, None) if value is None else (1, value)
            for name, value in zip(_DATA_FILE_NAMES, file._data, strict=True)
        }
        if file.key_metadata is not None:
            raise self._refused("has encrypted files")
        said: dict[str, Any] = {
            "content": file.content.value, "file_path": file.file_path,
            "file_format": file.file_format.value, "file_size_in_bytes": file.file_size_in_bytes,
            "split_offsets": values["split_offsets"],
        }  # fmt: skip
        for name in _BOUNDS:
            there, bounds = values[name]
            pairs = [{"key": k, "value": v} for k, v in (bounds or {}).items()]
            said[name] = (there, pairs if there else None)
        self._file(said, gone=False)
        new = list(file._data)
        new[_DATA_FILE_NAMES.index("file_path")] = said["file_path"]
        new[_DATA_FILE_NAMES.index("file_size_in_bytes")] = said["file_size_in_bytes"]
        new[_DATA_FILE_NAMES.index("split_offsets")] = said["split_offsets"][1]
        for name in _BOUNDS:
            there, pairs = said[name]
            new[_DATA_FILE_NAMES.index(name)] = (
                {p["key"]: p["value"] for p in pairs} if there else None
            )
        made = DataFile(*new)
        made.spec_id = file.spec_id
        return made

    def moved(self, location: str) -> str:
        """The new location of a file that stays as it is."""
        return self._moved(location)

    def _keep(self, location: str, size: int) -> str:
        """Note a file that stays as it is; gives its new location."""
        self.found.kept[location] = size
        return self._moved(location)

    def _properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        done = {}
        for key, value in properties.items():
            done[key] = self._moved(value) if key in PATH_PROPERTIES else value
            if key.startswith("encryption."):
                raise self._refused(f"is encrypted (property {key})")
            if key not in PATH_PROPERTIES and self._places.names_old(value):
                raise self._refused(f"has a property {key} that names the place it was in")
        return done

    def _snapshot(self, entry: Raw) -> dict[str, Any]:
        self._only("a snapshot", entry, _SNAPSHOT_FIELDS)
        if "manifest-list" not in entry:
            raise self._refused(f"has no manifest list of snapshot {entry['snapshot-id']}")
        return {**entry, "manifest-list": self._list(entry["manifest-list"])}

    def _statistics(self, entry: Raw) -> dict[str, Any]:
        self._only("its statistics", entry, _STATISTICS_FIELDS)
        old = entry["statistics-path"]
        if "blob-metadata" not in entry:  # of partitions: a table of counts
            return {**entry, "statistics-path": self._keep(old, entry["file-size-in-bytes"])}
        again = self._understood(
            old, lambda: puffin.rewrite_footer(self._read(old), self._places.names_old, self._moved)
        )
        if again is None:
            return {**entry, "statistics-path": self._keep(old, entry["file-size-in-bytes"])}
        target = self._places.written(old)
        self._write(old, target, again.content)
        blobs = [
            {**blob, "properties": said} if blob.get("properties") else blob
            for blob, said in zip(entry["blob-metadata"], again.properties, strict=True)
        ]
        new = {**entry, "statistics-path": target, "blob-metadata": blobs}
        new["file-size-in-bytes"] = len(again.content)
        new["file-footer-size-in-bytes"] = again.footer
        return new

    def _list(self, location: str) -> str:
        file = self._avro(location)
        self._only(
            "a manifest list",
            file.fields,
            _MANIFEST_LIST_FIELDS | self._empty(file.records, file.fields),
        )
        for record in file.records:
            path, length = self._manifest(record["manifest_path"])
            record["manifest_path"], record["manifest_length"] = path, length
        return self._again(location, file)[0]

    def _manifest(self, location: str) -> tuple[str, int]:
        if location not in self._manifests:
            file = self._avro(location)
            inner = avro.fields_of(file.fields["data_file"])
            files = [record["data_file"] for record in file.records]
            self._only(
                "a manifest", file.fields, _ENTRY_FIELDS | self._empty(file.records, file.fields)
            )
            self._only("a manifest's file", inner, _DATA_FILE_FIELDS | self._empty(files, inner))
            for record in file.records:
                self._file(record["data_file"], record["status"] == _DELETED_STATUS)
            self._manifests[location] = self._again(location, file)
        return self._manifests[location]

    def _file(self, file: dict[str, Any], gone: bool) -> None:
        """Give a file of a manifest its new location; one that is gone is only named."""
        location, content = file["file_path"], file.get("content", _DATA)
        if content == _EQUALITY:
            raise self._refused("has equality deletes")
        if content not in (_DATA, _POSITIONS) or file["file_format"].upper() != "PARQUET":
            raise self._refused(f"has a {file['file_format']} file, and Parquet is understood")
        referenced = file.get("referenced_data_file")
        if referenced is not None and referenced[1] is not None:
            file["referenced_data_file"] = (referenced[0], self._moved(referenced[1]))
        if content == _DATA:
            file["file_path"] = self._moved(location)
            if not gone:
                self.found.kept[location] = file["file_size_in_bytes"]
        elif gone:
            self._moved(location)
            file["file_path"] = self._places.written(location)
        else:
            made = self.delete_file(location)
            file["file_path"], file["file_size_in_bytes"] = made.location, made.size
            if file.get("split_offsets", (0, None))[1] is not None:
                file["split_offsets"] = (file["split_offsets"][0], list(made.offsets))
        if content == _POSITIONS:
            ends = (None, None) if gone else (self._deletes[location].low, made.high)
            for name, end in zip(_BOUNDS, ends, strict=True):
                _set_bound(file, name, end)

    def _avro(self, location: str) -> AvroFile:
        file = self._understood(location, lambda: avro.read(self._read(location)))
        version = file.metadata.get("format-version", b"1")
        if version not in (b"1", b"2"):
            raise self._refused(f"has metadata of format version {version.decode()}")
        return file

    def _again(self, location: str, file: AvroFile) -> tuple[str, int]:
        target, content = self._places.written(location), avro.dump(file)
        self._write(location, target, content)
        return target, len(content)

    def _write(self, old: str, new: str, content: bytes) -> None:
        self.found.replaced.add(old)
        self._put(new, content)

    def _moved(self, location: str) -> str:
        try:
            return self._places.moved(location)
        except ValueError:
            raise self._refused(
                f"refers to {normalize_location(location)}, which is not where it lies"
            ) from None

    def _empty(self, records: list[Any], fields: Mapping[str, Any]) -> frozenset[str]:
        """The optional fields that no record has a value in."""
        optional = [name for name, kind in fields.items() if isinstance(kind, list)]
        return frozenset(
            name for name in optional if all(record[name][1] is None for record in records)
        )

    def _only(self, what: str, there: Mapping[str, Any], known: frozenset[str]) -> None:
        """Raise Unmovable for a field that may hold a location for all that is known here."""
        for name in there:
            if name not in known and there[name] is not None:
                raise self._refused(f"has {name} in {what}, which is not understood")

    def _understood(self, location: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except (ValueError, KeyError, OSError) as error:
            name = location.rsplit("/", 1)[-1]
            raise self._refused(f"has {name}, which cannot be read: {error}") from error

    def _refused(self, what: str) -> Unmovable:
        return Unmovable(self.table, what)


def _set_bound(file: dict[str, Any], name: str, value: str | None) -> None:
    """Set the bound of the paths in a delete file, where it has bounds; None takes it away."""
    branch, bounds = file.get(name, (0, None))
    if bounds is None:
        return
    others = [each for each in bounds if each["key"] != PATH_ID]
    had = len(others) < len(bounds)
    if had and value is not None:
        others.append({"key": PATH_ID, "value": value.encode()})
    file[name] = (branch, others)
