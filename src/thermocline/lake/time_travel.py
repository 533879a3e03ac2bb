"""Resolve a snapshot by id, time, tag or branch."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from thermocline.errors import BadInput, NotFound
from thermocline.lake.metadata import MAIN, TableState

Moment = int | str | datetime | date

_AGO = re.compile(r"(\d+)\s*(s|sec|second|m|min|minute|h|hour|d|day|w|week)s?\s+ago")
_DAY = re.compile(r"(today|yesterday)(?:\s+(\d{1,2}):(\d{2})(?::(\d{2}))?)?")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def resolve_snapshot(state: TableState, at: Moment | None, *, now: datetime | None = None) -> int:
    """Return the snapshot of main at a moment, or the snapshot of a name or id.

    Raise NotFound for a table without a snapshot, an unknown id and a moment before the first
    commit. Raise BadInput for text that is none of these.
    """
    if at is None:
        head = state.head()
        if head is None:
            raise NotFound(f"{state.table} has no snapshot yet.", "Write to it first.")
        return head
    if isinstance(at, bool):
        raise BadInput(f"{at!r} is not a moment.", "Give a snapshot id, a time, a tag or a branch.")
    if isinstance(at, int):
        return state.snapshot(at).id
    if isinstance(at, str):
        if at in state.refs:
            return state.refs[at].snapshot
        if at.lstrip("-").isdigit() and len(at.lstrip("-")) > 8:
            return state.snapshot(int(at)).id
        if at.strip().lower() == "now":
            # main's head, also if commits are ahead of this machine's clock
            return resolve_snapshot(state, None)
    return snapshot_at(state, parse_time(at, now=now))


def snapshot_at(state: TableState, moment: datetime) -> int:
    """Return the snapshot that main pointed to at a moment, even if main was rolled back since."""
    millis = moment.timestamp() * 1000
    log = state.raw.get("snapshot-log") or ()
    current = [entry["snapshot-id"] for entry in log if entry["timestamp-ms"] <= millis]
    live = [snapshot for snapshot in current if snapshot in state.snapshots]
    if not live:
        first = min((s.timestamp_ms for s in state.ancestry(state.head(MAIN))), default=None)
        since = datetime.fromtimestamp(first / 1000, tz=UTC).isoformat() if first else "never"
        raise NotFound(
            f"{state.table} has nothing from {moment.isoformat()}: its history begins {since}.",
            _nearest_tag(state, millis) or f"`thermo history {state.table}` lists what there is.",
        )
    return int(live[-1])


def _nearest_tag(state: TableState, millis: float) -> str | None:
    """Return the next step for a moment that has expired: the nearest tag."""
    kept = state.only_tagged
    before = [snapshot for snapshot in kept if snapshot.timestamp_ms <= millis]
    if not kept:
        return None
    near = before[0] if before else kept[-1]
    name, when = state.names[near.id][0], near.committed_at.isoformat(timespec="seconds")
    return f"Ask for the tag {name}, which is from {when}; `thermo history {state.table}` has all."


def parse_time(at: str | datetime | date, *, now: datetime | None = None) -> datetime:
    """Parse ISO-8601, "yesterday 18:00", "2 hours ago" or a date (its end), in UTC."""
    if isinstance(at, datetime):
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    if isinstance(at, date):
        return datetime.combine(at, time.max, tzinfo=UTC)
    now = now or datetime.now(UTC)
    text = at.strip().lower()
    if text == "now":
        return now
    if found := _AGO.fullmatch(text):
        return now - timedelta(**{_UNIT[found[2][0]]: int(found[1])})
    try:
        if found := _DAY.fullmatch(text):
            day = now.date() - timedelta(days=found[1] == "yesterday")
            hour, minute, second = (int(part or 0) for part in found.groups()[1:])
            clock = time(hour, minute, second) if found[2] else time.max
            return datetime.combine(day, clock, tzinfo=UTC)
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return parse_time(date.fromisoformat(text))
        return parse_time(datetime.fromisoformat(at.strip()))
    except ValueError as error:
        raise BadInput(
            f"{at!r} is not a snapshot, a tag, a branch or a time.",
            'Write a time as 2026-11-14T18:00Z, "yesterday 18:00" or "2 hours ago".',
        ) from error
