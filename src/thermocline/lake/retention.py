"""Plan which snapshots expire with a commit to main, so that metadata does not grow forever.

Only snapshots that are certainly not needed expire: ancestors of main's head that exceed the count,
are older than the age, and precede every snapshot in use: the start of a branch, the newest
bookmark, and the snapshot that a consumer continues from. A tag keeps its own snapshot, and the
last state of each hour and day gets a tag (`restore_points`). Data files stay; maintenance removes
them. What expired snapshots consumed is kept: on a SQL catalog their rows move to anchors in the
consumption store; on a REST catalog the table carries the states that kept snapshots depend on
(`carried_state`), and the commit fails if a ref was made meanwhile (`ref_guard`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, NotFound
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import carried_state, ref_guard, restore_points, run_branches
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.commit_times import from_ms, now_ms
from thermocline.lake.consumers import find_consumers
from thermocline.lake.consumption import Consumption, RowMoves, make_gap
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.restore_points import RestorePoints
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    from thermocline.lake.consumption_store import ConsumptionStore
    from thermocline.lake.lake import Lake

MIN_SNAPSHOTS_PROPERTY, MAX_AGE_PROPERTY = (
    "history.expire.min-snapshots-to-keep",
    "history.expire.max-snapshot-age-ms",
)
"""Iceberg's own properties, which override the settings for one table."""

_EVERY_TABLE = "*"


@dataclass(frozen=True)
class RetentionPolicy:
    """How much history is kept: a minimum number of snapshots, and all younger than an age.

    `dead_ms` is the age at which branches of dead runs and unreachable snapshots are removed.
    `points` is the maximum number of restore points of each kind.
    """

    count: int
    age_ms: int
    dead_ms: int
    points: Mapping[str, int] = field(default_factory=lambda: {"hourly": 0, "daily": 0})

    def for_table(self, state: TableState) -> RetentionPolicy:
        """Return the policy of one table, with its own properties if it has them.

        Raise BadInput for a property that is no number, or a negative one: an age before which
        the future expires.
        """
        count = _read_number(state, MIN_SNAPSHOTS_PROPERTY, self.count)
        age = _read_number(state, MAX_AGE_PROPERTY, self.age_ms)
        # Other writers store the largest possible age for "forever".
        return replace(self, count=max(1, count), age_ms=min(age, now_ms()))


def _read_number(state: TableState, name: str, default: int) -> int:
    text = str(state.properties.get(name, default)).strip()
    if not re.fullmatch("[0-9]{1,19}", text, re.ASCII):
        raise BadInput(
            f"{state.table} has the property {name} = {text[:40]!r}, which is not a positive"
            " number; none of its snapshots expire.",
            "Set the property to a number, or remove it.",
            table=state.table,
        )
    return int(text)


@dataclass(frozen=True)
class Expiry:
    """The snapshots that expire with a commit: the changes, and the moves of consumption rows."""

    changes: tuple[TableChange, ...]
    moves: RowMoves | None
    """None on a REST catalog, where the changes record what was consumed."""
    oldest: int
    """The oldest kept snapshot of main."""
    gaps: tuple[tuple[str, int, Consumption], ...] = ()
    """Records that the ancestors of a snapshot expired without what they consumed, as rows."""
    companions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The restore points that the changes create in companions, by table and name."""


def plan_expiry(
    lake: Lake,
    state: TableState,
    head: int,
    *,
    held: Collection[int] = (),
    tagged: Collection[int] = (),
    ours: Collection[str] = (),
    bookmark: Mapping[str, Any] | None = None,
    carries_state: bool = False,
    unit: Callable[[], Iterable[TableState]] | None = None,
) -> Expiry | None:
    """Plan what expires with the commit that moves main to `head`; None if it is not worth it.

    `state` is the table before the commit, so `head` may be a new snapshot, with its own bookmark.
    `held` snapshots and their descendants are kept; `tagged` are those that the commit tags; `ours`
    are branches that it removes. `carries_state` says that the new snapshot has a carried state.
    With `unit`, which returns the table's companions, restore points are created and dropped.
    """
    store, now = lake.consumption_store, now_ms()
    try:
        policy = lake.retention_policy.for_table(state)
    except BadInput as error:
        log("retention", "nothing expires", level="WARNING", reason=one_line(error.cause))
        return None  # the commit is not at fault
    pending = head not in state.snapshots
    chain = list(state.ancestry(state.head() if pending else head))
    dead = dict(run_branches.find_dead_branches(lake, state, now - policy.dead_ms, ours))
    if not dead and len(state.snapshots) <= policy.count - pending:
        return None
    if store is None and not dead and not _is_search_due(lake, state, chain, policy):
        return None
    refs = {n: r for n, r in state.refs.items() if n not in dead and n not in ours and n != MAIN}
    index = {snapshot.id: number for number, snapshot in enumerate(chain)}
    branches = [ref.snapshot for ref in refs.values() if ref.type != "tag"]
    joins = (_branch_point(state, branch, index) for branch in branches)
    consumers = _consumer_snapshots(lake, state.table)
    if consumers is None:
        return None
    needed = [
        policy.count - 1 - pending,
        -1 if pending and bookmark else _newest_bookmark_index(chain),
        *(index[s] for s in (*held, *joins) if s in index),
        *(
            index[s]
            for s in consumers
            if s in index and not _is_abandoned(chain, index[s], now, policy)
        ),
    ]
    last = min(max(needed), len(chain) - 1)
    while last + 1 < len(chain) and chain[last + 1].timestamp_ms > now - policy.age_ms:
        last += 1
    points, companions = _plan_restore_points(state, chain, last, policy, unit)
    refs = {n: r for n, r in refs.items() if n not in points.dropped}
    tags = {
        *tagged,
        *points.created.values(),
        *(r.snapshot for r in refs.values() if r.type == "tag"),
        *([] if (guarded := ref_guard.guard_snapshot(state)) is None else [guarded]),
    }
    older = [s.id for s in chain[last + 1 :]]
    gone = frozenset(s for s in older if s not in tags)
    gone |= _unreachable(state, chain, {*tags, *branches}, points.dropped, now - policy.dead_ms)
    if not dead and len(gone) <= policy.count // 10:
        if store is None:
            lake.bookmarked_consumers.postpone(state, 1 + policy.count // 10)
        return None  # expiring many at once costs less than one in each commit
    root, moves, gaps = chain[last].id if last >= 0 else head, None, _find_gaps(store, state, chain)
    changes = [
        *_restore_point_changes(state, points, companions),
        *_table_changes(state, gone, dead),
    ]
    if store is None:
        new = head if pending and not carries_state else None
        changes += _carry_states(lake, state, gone, new)
    elif _may_hold_only_record(state, gone) and not store.is_migrated(state.uuid):
        return None  # the next scan of the landing folder migrates them to rows
    else:
        named = bookmarks.feed_batches(bookmark or {}) | _named_batches(state, gone)
        moves = _plan_row_moves(state, store, older, root, tags, gone, named)
    created = {each.table: at for each, at in companions}
    return Expiry(tuple(changes), moves, root, gaps, created)


def _find_gaps(
    store: ConsumptionStore | None, state: TableState, chain: Sequence[Snapshot]
) -> tuple[tuple[str, int, Consumption], ...]:
    """Return the record that another tool expired ancestors, which this expiry would hide."""
    if store is None or not chain or bookmarks.is_first(chain[-1]):
        return ()
    if chain[-1].id in store.bound_snapshots(state.uuid):
        return ()
    return ((state.uuid, chain[-1].id, make_gap(chain[-1].timestamp_ms * 1_000_000)),)


def _is_search_due(
    lake: Lake, state: TableState, chain: Sequence[Snapshot], policy: RetentionPolicy
) -> bool:
    """Whether so many snapshots could expire that searching for consumers is worth it.

    The bound leaves out unreachable snapshots, which are removed with the next expiry.
    """
    old = sum(each.timestamp_ms <= now_ms() - policy.age_ms for each in chain[policy.count - 1 :])
    return old > policy.count // 10 and lake.bookmarked_consumers.is_due(state)


def _consumer_snapshots(lake: Lake, table: str) -> list[int] | None:
    """Return the snapshots that the consumers of a table continue from; None if not known."""
    store = lake.consumption_store
    if store is None:
        try:
            return lake.bookmarked_consumers.snapshots(table)
        except NotFound as error:  # metadata of another table is missing
            log("retention", "nothing expires", level="WARNING", reason=one_line(str(error)))
            return None
    _register_consumers_once(lake, store)
    return store.consumer_snapshots(table)


def _carry_states(
    lake: Lake, state: TableState, gone: Collection[int], pending: int | None
) -> Iterator[TableChange]:
    """Yield the changes that keep on a REST catalog what expiring snapshots consumed."""
    from pyiceberg.table.update import SetPropertiesUpdate

    if not gone:
        return
    yield ref_guard.require_guard(state)
    runs = carried_state.open_runs(lake, state)
    anchors = carried_state.plan_anchors(runs, state, gone, pending)
    if anchors:
        yield TableChange(state.table, (), (SetPropertiesUpdate(updates=anchors),))


Companions = list[tuple["TableState", dict[str, int]]]
"""Companions of a table, each with its restore points by name."""


def _plan_restore_points(
    state: TableState,
    chain: Sequence[Snapshot],
    last: int,
    policy: RetentionPolicy,
    unit: Callable[[], Iterable[TableState]] | None,
) -> tuple[RestorePoints, Companions]:
    """Plan the restore points that are created and dropped when main keeps `chain[: last]`."""
    if unit is None:
        return RestorePoints(), []
    now = now_ms()
    since = from_ms(now - policy.age_ms) if MAX_AGE_PROPERTY in state.properties else None
    points = restore_points.choose_restore_points(
        state, chain[last + 1 :], from_ms(now), policy.points, since
    )
    if not points.created and not points.dropped:
        return points, []
    return restore_points.match_companions(state, points, unit())


def _restore_point_changes(
    state: TableState, points: RestorePoints, companions: Companions
) -> Iterator[TableChange]:
    for each, created in ((state, points.created), *companions):
        yield from restore_points.ref_changes(each, created, points.dropped)


def _unreachable(
    state: TableState,
    chain: Sequence[Snapshot],
    heads: Collection[int],
    dropped: Mapping[str, int],
    before_ms: int,
) -> frozenset[int]:
    """Return the unreachable snapshots that are old, or whose restore point is dropped."""
    reached = {s.id for head in heads for s in state.ancestry(head)} | {s.id for s in chain}
    untagged = {*dropped.values()}
    return frozenset(
        s.id for s in state.snapshots.values()
        if s.id not in reached and (s.id in untagged or s.timestamp_ms < before_ms)
    )  # fmt: skip


def _register_consumers_once(lake: Lake, store: ConsumptionStore) -> None:
    """Register existing consumers, once for each catalog, for lakes older than the store."""
    if store.has_registered_consumers or store.is_migrated(_EVERY_TABLE):
        store.has_registered_consumers = True
        return
    store.register(find_consumers(lake))
    store.migrate(_EVERY_TABLE, ())
    store.has_registered_consumers = True


def _may_hold_only_record(state: TableState, gone: Collection[int]) -> bool:
    """Whether the only record of landed files may be in the summaries of these snapshots."""
    texts = (state.snapshot(each).summary.get(bookmarks.BOOKMARK, "") for each in gone)
    return any('"files"' in text for text in texts)


def _newest_bookmark_index(chain: Sequence[Snapshot]) -> int:
    """Return the index of the newest bookmark in main's ancestry, or -1."""
    marked = (n for n, snapshot in enumerate(chain) if bookmarks.BOOKMARK in snapshot.summary)
    return next(marked, -1)


def _is_abandoned(chain: Sequence[Snapshot], index: int, now: int, policy: RetentionPolicy) -> bool:
    """Whether a consumer has been behind for so long that its snapshot is not kept any more."""
    return index > 0 and chain[index - 1].timestamp_ms < now - policy.dead_ms


def _branch_point(state: TableState, head: int, index: Mapping[int, int]) -> int | None:
    """Return the snapshot of main's ancestry that a branch starts from."""
    return next((s.id for s in state.ancestry(head) if s.id in index), None)


def _plan_row_moves(
    state: TableState,
    store: ConsumptionStore,
    older: Sequence[int],
    root: int,
    tags: Collection[int],
    gone: frozenset[int],
    named: frozenset[bookmarks.Batch],
) -> RowMoves:
    """Plan the moves of consumption rows to the new root, and to tags that descend from them.

    `older` are main's ancestors before the root, newest first; tags among them are kept singly.
    """
    before = store.anchors(state.uuid)
    bindings = {anchor: bound - gone for anchor, bound in before.items()}
    if older:
        old_root = older[-1]
        alone = frozenset(s for s in older if s in tags)
        for anchor, bound in before.items():
            if old_root in bound:
                bindings[anchor] |= alone | {root}
    anchors = _merge_equal_anchors(before, bindings)
    above: frozenset[int] = frozenset({root})
    for snapshot in older:  # newest first, so each one descends from the next
        known = next((a for a, bound in bindings.items() if bound == above), None)
        anchor = known if known is not None else -snapshot
        bindings[anchor] = above
        anchors[snapshot] = anchor
        if snapshot in tags:
            above |= {snapshot}
    return RowMoves(state.uuid, anchors, bindings, gone, named)


def _merge_equal_anchors(
    before: Mapping[int, frozenset[int]], bindings: dict[int, frozenset[int]]
) -> dict[int, int]:
    """Return the equal anchor that replaces an anchor with the same bindings.

    Anchors become equal when a tag between them is dropped. The anchor that had more bindings is
    the older one with more rows, so the rows of the other one move.
    """
    first: dict[frozenset[int], int] = {}
    moved: dict[int, int] = {}
    for anchor in sorted(before, key=lambda each: len(before[each]), reverse=True):
        bound = bindings[anchor]
        if bound and first.setdefault(bound, anchor) != anchor:
            moved[anchor], bindings[anchor] = first[bound], frozenset()
    return moved


def _named_batches(state: TableState, gone: frozenset[int]) -> frozenset[bookmarks.Batch]:
    """Return the batches of feeds in the bookmarks of kept snapshots."""
    kept = (snapshot for number, snapshot in state.snapshots.items() if number not in gone)
    return frozenset(
        name
        for each in kept
        for name in bookmarks.feed_batches(bookmarks.parse_bookmark(each) or {})
    )


def _table_changes(
    state: TableState, gone: frozenset[int], dead: Mapping[str, int]
) -> Iterator[TableChange]:
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    from thermocline.lake import refs

    for name, head in dead.items():
        yield refs.drop_ref(state.table, name, was=head)
    if gone:
        yield TableChange(state.table, (), (RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)),))
