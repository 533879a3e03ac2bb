"""Build a table's next metadata file: apply updates to the JSON of the current one.

PyIceberg copies all snapshots several times for each commit. Here a commit costs only its changes
and one serialization of the file. Times never go back; see commit_times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.errors import CommitConflict, Permanent
from thermocline.lake.commit_times import last_ms, next_ms
from thermocline.lake.metadata import MAIN

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

Raw = Mapping[str, Any]

LOG_SIZE = "write.metadata.previous-versions-max"
_LOG_SIZE_DEFAULT, _LOG_SIZE_MAX = 100, 400
GRACE_MS = 120_000
"""Milliseconds for which younger metadata files stay, since a query may still read them."""
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


class SequenceNumberTaken(CommitConflict):
    """A concurrent commit to the table took the snapshot's sequence number."""


def apply_updates(
    table: str, raw: Raw, location: str, updates: Sequence[TableUpdate]
) -> dict[str, Any]:
    """Return the metadata that follows `raw`, the unchanged content of the file at `location`."""
    new = dict(raw)
    new["refs"] = dict(_read_refs(raw))
    at = next_ms(last_ms(raw))
    for update in updates:
        if update.action not in _APPLY_BY_ACTION:
            raise Permanent(
                f"A commit to {table} needs the update {update.action}, which is not implemented.",
                "This is a bug; please report it.",
            )
        at = _APPLY_BY_ACTION[update.action](table, new, update, at)
    new["last-updated-ms"] = at
    log = [
        *(raw.get("metadata-log") or ()),
        {"metadata-file": location, "timestamp-ms": raw["last-updated-ms"]},
    ]
    young = (
        sum(entry["timestamp-ms"] > at - GRACE_MS for entry in log)
        if _deletes_after_commit(raw)
        else 0
    )
    new["metadata-log"] = log[-max(_max_log_entries(raw), min(young, _LOG_SIZE_MAX)) :]
    return new


def unlogged_files(raw: Raw, new: Raw) -> frozenset[str]:
    """Return the metadata files that drop out of the log, if the table has them deleted."""
    if not _deletes_after_commit(new):
        return frozenset()
    logged = ({entry["metadata-file"] for entry in each.get("metadata-log") or ()}
              for each in (raw, new))  # fmt: skip
    before, after = logged
    return frozenset(before - after)


def require_next_sequence(table: str, snapshot: Snapshot, current: TableMetadata) -> None:
    """Raise SequenceNumberTaken for a snapshot whose sequence number is already used."""
    last = getattr(current, "last_sequence_number", 0)  # the first format has none
    if current.format_version > 1 and (snapshot.sequence_number or 0) <= last:
        raise SequenceNumberTaken(
            f"{table} was changed by another process.", "Run again.", table=table
        )


def dump(raw: Raw) -> bytes:
    """Serialize a metadata file."""
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":")).encode()


def _deletes_after_commit(raw: Raw) -> bool:
    return str((raw.get("properties") or {}).get(DELETE_AFTER_COMMIT, "false")).lower() == "true"


def _max_log_entries(raw: Raw) -> int:
    size = (raw.get("properties") or {}).get(LOG_SIZE, _LOG_SIZE_DEFAULT)
    return max(1, int(size))


def _read_refs(raw: Raw) -> Mapping[str, Any]:
    """Return the refs; a table of format version 1 may only name its current snapshot."""
    current = raw.get("current-snapshot-id")
    if raw.get("refs") or current in (None, -1):
        return raw.get("refs") or {}
    return {MAIN: {"snapshot-id": current, "type": "branch"}}


def _add_snapshot(table: str, new: dict[str, Any], update: Any, at: int) -> int:
    if new["format-version"] > 2:
        raise Permanent(
            f"{table} has format version {new['format-version']}, which cannot be written here.",
            "Write to it with Spark.",
        )
    entry = json.loads(update.snapshot.model_dump_json())
    if any(each["snapshot-id"] == entry["snapshot-id"] for each in new.get("snapshots") or ()):
        raise Permanent(
            f"{table} has a snapshot {entry['snapshot-id']} already.", "Run again.", table=table
        )
    at = max(at, entry["timestamp-ms"])
    entry["timestamp-ms"] = at
    if new["format-version"] == 2:
        new["last-sequence-number"] = entry["sequence-number"]
    new["snapshots"] = [*(new.get("snapshots") or ()), entry]
    return at


def _set_ref(table: str, new: dict[str, Any], update: Any, at: int) -> int:
    if not any(each["snapshot-id"] == update.snapshot_id for each in new.get("snapshots") or ()):
        raise CommitConflict(
            f"{table} has no snapshot {update.snapshot_id} any more: it expired.", "Run again.",
            table=table,
        )  # fmt: skip
    kept = {
        "max-ref-age-ms": update.max_ref_age_ms,
        "max-snapshot-age-ms": update.max_snapshot_age_ms,
        "min-snapshots-to-keep": update.min_snapshots_to_keep,
    }
    ref = {"snapshot-id": update.snapshot_id, "type": getattr(update.type, "value", update.type)}
    ref |= {name: value for name, value in kept.items() if value is not None}
    if new["refs"].get(update.ref_name) == ref:
        return at
    new["refs"][update.ref_name] = ref
    if update.ref_name == MAIN:
        new["current-snapshot-id"] = update.snapshot_id
        entry = {"snapshot-id": update.snapshot_id, "timestamp-ms": at}
        new["snapshot-log"] = [*(new.get("snapshot-log") or ()), entry]
    return at


def _remove_ref(table: str, new: dict[str, Any], update: Any, at: int) -> int:
    if new["refs"].pop(update.ref_name, None) is not None and update.ref_name == MAIN:
        new.pop("current-snapshot-id", None)
    return at


def _set_properties(table: str, new: dict[str, Any], update: Any, at: int) -> int:
    new["properties"] = {**(new.get("properties") or {}), **update.updates}
    return at


def _remove_snapshots(table: str, new: dict[str, Any], update: Any, at: int) -> int:
    """Remove snapshots and their statistics. Raise CommitConflict if a ref needs one of them."""
    gone = set(update.snapshot_ids)
    if needed := [name for name, ref in new["refs"].items() if ref["snapshot-id"] in gone]:
        raise CommitConflict(
            f"{table}: {needed[0]} needs a snapshot that the commit expires.",
            "Run again.",
            table=table,
        )
    new["snapshots"] = _exclude_snapshots(new.get("snapshots") or (), gone)
    # The log before a removed snapshot is incomplete, and its readers stop there.
    log = new.get("snapshot-log") or []
    lost = max((n for n, each in enumerate(log) if each["snapshot-id"] in gone), default=-1)
    new["snapshot-log"] = log[lost + 1 :]
    for described in ("statistics", "partition-statistics"):
        if new.get(described):
            new[described] = _exclude_snapshots(new[described], gone)
    return at


def _exclude_snapshots(entries: Iterable[Any], gone: set[int]) -> list[Any]:
    return [entry for entry in entries if entry["snapshot-id"] not in gone]


_APPLY_BY_ACTION: Mapping[str, Callable[[str, dict[str, Any], Any, int], int]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "set-properties": _set_properties,
}
