"""Rewrite the references of a table's metadata to its files.

A table references its files by absolute locations: in its metadata file, manifest lists, manifests,
and in bounds and rows of position-delete files. This module rewrites all of them with new
locations. A field that is not known to be free of locations is refused: it may reference a file at
the old location.
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
from thermocline.lake.position_deletes import PATH_ID, RewrittenDeletes, rewrite_paths
from thermocline.lake.pyiceberg_internals import data_file_values

T = TypeVar("T")
Raw = Mapping[str, Any]

PATH_PROPERTIES = frozenset(
    {"write.data.path", "write.metadata.path", "write.object-storage.path",
     "write.folder-storage.path"}
)  # fmt: skip
"""The table properties with locations that the table writes to."""
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
    """Part of a table is unknown, so its references cannot be rewritten."""

    code = "unmovable"
    exit_code = 2

    def __init__(self, table: str, what: str) -> None:
        super().__init__(
            f"{table} {what}.",
            "Nothing was changed. Rewrite the table where it is, or leave this out of it.",
            table=table,
        )


class LocationMap(Protocol):
    """The mapping from old to new locations."""

    def map_location(self, location: str) -> str:
        """Return the new location of an unchanged file. Raise ValueError outside the warehouse."""

    def map_rewritten(self, location: str) -> str:
        """Return the location of the rewritten copy of a metadata file, under a new name."""

    def mentions_old_location(self, text: str) -> bool:
        """Whether a text contains an old location."""


@dataclass
class RewrittenReferences:
    """The rewritten metadata of a table, and the files that it references."""

    raw: dict[str, Any] = field(default_factory=dict)
    """The metadata file with the new references."""
    kept: dict[str, int] = field(default_factory=dict)
    """Sizes of unchanged files, by old location."""
    replaced: set[str] = field(default_factory=set)
    """The old locations of rewritten files."""
    logged: set[str] = field(default_factory=set)
    """Earlier metadata files, which the new metadata no longer references."""


class ReferenceRewriter:
    """Rewrites one table's metadata with other references.

    `read` returns the bytes of a file by its old location; `put` writes a new file. A file is
    written after all files that it references, and only once.
    """

    def __init__(
        self,
        table: str,
        mapping: LocationMap,
        read: Callable[[str], bytes],
        put: Callable[[str, bytes], None],
    ) -> None:
        self.table = table
        self.result = RewrittenReferences()
        self._mapping, self._read, self._put = mapping, read, put
        self._manifests: dict[str, tuple[str, int]] = {}
        self._deletes: dict[str, RewrittenDeletes] = {}

    def rewrite(self, raw: Raw) -> RewrittenReferences:
        """Rewrite the files that a metadata file references; return its new content, unwritten."""
        if raw.get("format-version") != 2:
            raise self._unmovable(
                f"has format version {raw.get('format-version')}; only 2 is supported"
            )
        self._require_known("its metadata", raw, _TABLE_FIELDS)
        new = dict(raw) | {"location": self.map_location(raw["location"]), "metadata-log": []}
        new["properties"] = self._map_properties(raw.get("properties") or {})
        new["snapshots"] = [self._rewrite_snapshot(each) for each in raw.get("snapshots") or ()]
        for name in ("statistics", "partition-statistics"):
            if raw.get(name):
                new[name] = [self._rewrite_statistics(each) for each in raw[name]]
        self.result.raw = new
        self.result.logged.update(e["metadata-file"] for e in raw.get("metadata-log") or ())
        return self.result

    def rewrite_deletes(self, location: str) -> RewrittenDeletes:
        """Rewrite a position-delete file, once."""
        if location not in self._deletes:
            rewritten = self._guard(
                location, lambda: rewrite_paths(self._read(location), self.map_location)
            )
            target = self._mapping.map_rewritten(location)
            self._write(location, target, rewritten.content)
            self._deletes[location] = replace(rewritten, content=b"", location=target)
        return self._deletes[location]

    def rewrite_data_file(self, file: DataFile) -> DataFile:
        """Return PyIceberg's object of an uncommitted file, at its new location."""
        values: dict[str, Any] = {
            name: (0, None) if value is None else (1, value)
            for name, value in zip(_DATA_FILE_NAMES, data_file_values(file), strict=True)
        }
        if file.key_metadata is not None:
            raise self._unmovable("has encrypted files")
        fields: dict[str, Any] = {
            "content": file.content.value, "file_path": file.file_path,
            "file_format": file.file_format.value, "file_size_in_bytes": file.file_size_in_bytes,
            "split_offsets": values["split_offsets"],
        }  # fmt: skip
        for name in _BOUNDS:
            there, bounds = values[name]
            pairs = [{"key": k, "value": v} for k, v in (bounds or {}).items()]
            fields[name] = (there, pairs if there else None)
        self._rewrite_file(fields, is_removed=False)
        new = data_file_values(file)
        new[_DATA_FILE_NAMES.index("file_path")] = fields["file_path"]
        new[_DATA_FILE_NAMES.index("file_size_in_bytes")] = fields["file_size_in_bytes"]
        new[_DATA_FILE_NAMES.index("split_offsets")] = fields["split_offsets"][1]
        for name in _BOUNDS:
            there, pairs = fields[name]
            new[_DATA_FILE_NAMES.index(name)] = (
                {p["key"]: p["value"] for p in pairs} if there else None
            )
        moved = DataFile(*new)
        moved.spec_id = file.spec_id
        return moved

    def map_location(self, location: str) -> str:
        """Return the new location of an unchanged file."""
        try:
            return self._mapping.map_location(location)
        except ValueError:
            raise self._unmovable(
                f"refers to {normalize_location(location)}, which is outside its warehouse"
            ) from None

    def _keep(self, location: str, size: int) -> str:
        """Record an unchanged file; return its new location."""
        self.result.kept[location] = size
        return self.map_location(location)

    def _map_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        mapped = {}
        for key, value in properties.items():
            mapped[key] = self.map_location(value) if key in PATH_PROPERTIES else value
            if key.startswith("encryption."):
                raise self._unmovable(f"is encrypted (property {key})")
            if key not in PATH_PROPERTIES and self._mapping.mentions_old_location(value):
                raise self._unmovable(f"has a property {key} that contains its old location")
        return mapped

    def _rewrite_snapshot(self, entry: Raw) -> dict[str, Any]:
        self._require_known("a snapshot", entry, _SNAPSHOT_FIELDS)
        if "manifest-list" not in entry:
            raise self._unmovable(f"has no manifest list of snapshot {entry['snapshot-id']}")
        return {**entry, "manifest-list": self._rewrite_manifest_list(entry["manifest-list"])}

    def _rewrite_statistics(self, entry: Raw) -> dict[str, Any]:
        self._require_known("its statistics", entry, _STATISTICS_FIELDS)
        old = entry["statistics-path"]
        if "blob-metadata" not in entry:  # of partitions: a table of counts
            return {**entry, "statistics-path": self._keep(old, entry["file-size-in-bytes"])}
        rewritten = self._guard(
            old,
            lambda: puffin.rewrite_footer(
                self._read(old), self._mapping.mentions_old_location, self.map_location
            ),
        )
        if rewritten is None:
            return {**entry, "statistics-path": self._keep(old, entry["file-size-in-bytes"])}
        target = self._mapping.map_rewritten(old)
        self._write(old, target, rewritten.content)
        blobs = [
            {**blob, "properties": new_properties} if blob.get("properties") else blob
            for blob, new_properties in zip(
                entry["blob-metadata"], rewritten.properties, strict=True
            )
        ]
        new = {**entry, "statistics-path": target, "blob-metadata": blobs}
        new["file-size-in-bytes"] = len(rewritten.content)
        new["file-footer-size-in-bytes"] = rewritten.footer
        return new

    def _rewrite_manifest_list(self, location: str) -> str:
        file = self._read_avro(location)
        self._require_known(
            "a manifest list",
            file.fields,
            _MANIFEST_LIST_FIELDS | self._unset_fields(file.records, file.fields),
        )
        for record in file.records:
            path, length = self._rewrite_manifest(record["manifest_path"])
            record["manifest_path"], record["manifest_length"] = path, length
        return self._write_avro(location, file)[0]

    def _rewrite_manifest(self, location: str) -> tuple[str, int]:
        if location not in self._manifests:
            file = self._read_avro(location)
            inner = avro.fields_of(file.fields["data_file"])
            files = [record["data_file"] for record in file.records]
            self._require_known(
                "a manifest",
                file.fields,
                _ENTRY_FIELDS | self._unset_fields(file.records, file.fields),
            )
            self._require_known(
                "a manifest's file", inner, _DATA_FILE_FIELDS | self._unset_fields(files, inner)
            )
            for record in file.records:
                self._rewrite_file(record["data_file"], record["status"] == _DELETED_STATUS)
            self._manifests[location] = self._write_avro(location, file)
        return self._manifests[location]

    def _rewrite_file(self, file: dict[str, Any], is_removed: bool) -> None:
        """Set the new location of a manifest's file. A removed file is not rewritten."""
        location, content = file["file_path"], file.get("content", _DATA)
        if content == _EQUALITY:
            raise self._unmovable("has equality deletes")
        if content not in (_DATA, _POSITIONS) or file["file_format"].upper() != "PARQUET":
            raise self._unmovable(f"has a {file['file_format']} file; only Parquet is supported")
        referenced = file.get("referenced_data_file")
        if referenced is not None and referenced[1] is not None:
            file["referenced_data_file"] = (referenced[0], self.map_location(referenced[1]))
        if content == _DATA:
            file["file_path"] = self.map_location(location)
            if not is_removed:
                self.result.kept[location] = file["file_size_in_bytes"]
        elif is_removed:
            self.map_location(location)
            file["file_path"] = self._mapping.map_rewritten(location)
        else:
            deletes = self.rewrite_deletes(location)
            file["file_path"], file["file_size_in_bytes"] = deletes.location, deletes.size
            if file.get("split_offsets", (0, None))[1] is not None:
                file["split_offsets"] = (file["split_offsets"][0], list(deletes.offsets))
        if content == _POSITIONS:
            ends = (None, None) if is_removed else (deletes.low, deletes.high)
            for name, end in zip(_BOUNDS, ends, strict=True):
                _set_bound(file, name, end)

    def _read_avro(self, location: str) -> AvroFile:
        file = self._guard(location, lambda: avro.read(self._read(location)))
        version = file.metadata.get("format-version", b"1")
        if version not in (b"1", b"2"):
            raise self._unmovable(f"has metadata of format version {version.decode()}")
        return file

    def _write_avro(self, location: str, file: AvroFile) -> tuple[str, int]:
        target, content = self._mapping.map_rewritten(location), avro.dump(file)
        self._write(location, target, content)
        return target, len(content)

    def _write(self, old: str, new: str, content: bytes) -> None:
        self.result.replaced.add(old)
        self._put(new, content)

    def _unset_fields(self, records: list[Any], fields: Mapping[str, Any]) -> frozenset[str]:
        """Return the optional fields without a value in any record."""
        optional = [name for name, kind in fields.items() if isinstance(kind, list)]
        return frozenset(
            name for name in optional if all(record[name][1] is None for record in records)
        )

    def _require_known(self, what: str, there: Mapping[str, Any], known: frozenset[str]) -> None:
        """Raise Unmovable for an unknown field, which may contain a location."""
        for name in there:
            if name not in known and there[name] is not None:
                raise self._unmovable(f"has {name} in {what}, which is an unknown field")

    def _guard(self, location: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except (ValueError, KeyError, OSError) as error:
            name = location.rsplit("/", 1)[-1]
            raise self._unmovable(f"has {name}, which cannot be read: {error}") from error

    def _unmovable(self, what: str) -> Unmovable:
        return Unmovable(self.table, what)


def _set_bound(file: dict[str, Any], name: str, value: str | None) -> None:
    """Set the bound of the paths in a delete file's bounds, if any; None removes it."""
    branch, bounds = file.get(name, (0, None))
    if bounds is None:
        return
    others = [each for each in bounds if each["key"] != PATH_ID]
    had_bound = len(others) < len(bounds)
    if had_bound and value is not None:
        others.append({"key": PATH_ID, "value": value.encode()})
    file[name] = (branch, others)
