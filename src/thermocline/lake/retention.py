"""Which snapshots a commit to main lets go, so that no commit pays for all that were ever made.

Only what is certainly not needed goes: ancestors of main's head that are beyond the count and older
than the age, and before everything that somebody holds: a branch, a bookmark that is still the
newest, the snapshot from which a consumer goes on. A tag holds its own snapshot, and the last state
of an hour and of a day gets one (`restore_points`). Data files stay; removing them is the work of
maintenance. What the snapshots said was consumed is carried on in the
rows beside the pointer, so a REST catalog, which has none, lets nothing go here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks
from thermocline.lake import restore_points, run_branches
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.commit_times import from_ms, now_ms
from thermocline.lake.consumption import RowMoves
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.naming import RUN_PREFIX
from thermocline.lake.restore_points import RestorePoints

if TYPE_CHECKING:
    from thermocline.lake.consumption_store import ConsumptionStore
    from thermocline.lake.lake import Lake

MIN_SNAPSHOTS_PROPERTY, MAX_AGE_PROPERTY = (
    "history.expire.min-snapshots-to-keep",
    "history.expire.max-snapshot-age-ms",
)
"""Iceberg's own properties, by which a table is kept otherwise than the settings say."""

_EVERY_TABLE = "*"


@dataclass(frozen=True)
class RetentionPolicy:
    """How much history is kept: at least so many snapshots, and whatever is younger than an age.

    `dead_ms` is the age at which the branch of a run that never ended, and what no ref leads to,
    is given up. `points` are the most restore points of each kind.
    """

    count: int
    age_ms: int
    dead_ms: int
    points: Mapping[str, int] = field(default_factory=lambda: {"hourly": 0, "daily": 0})

    def of(self, state: TableState) -> RetentionPolicy:
        """The same for one table, by its own properties where it has them."""
        given = state.properties
        count, age = (
            int(given.get(MIN_SNAPSHOTS_PROPERTY, self.count)),
            int(given.get(MAX_AGE_PROPERTY, self.age_ms)),
        )
        return replace(self, count=max(1, count), age_ms=age)


@dataclass(frozen=True)
class Expiry:
    """What a commit to a table lets go: its changes, and what happens to the rows beside it."""

    changes: tuple[TableChange, ...]
    moves: RowMoves
    oldest: int
    """The oldest snapshot of main that stays."""
    companions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The restore points that the changes make in the table's companions, by table and name."""


def plan_expiry(
    lake: Lake,
    state: TableState,
    head: int,
    *,
    held: Collection[int] = (),
    tagged: Collection[int] = (),
    ours: Collection[str] = (),
    bookmark: Mapping[str, Any] | None = None,
    unit: Callable[[], Iterable[TableState]] | None = None,
) -> Expiry | None:
    """What to let go with the commit that moves main to `head`; None when that is little.

    `state` is the table before the commit, so `head` may be a snapshot that it does not have yet,
    with a bookmark of its own. `held` are snapshots that somebody else needs, and all after them;
    `tagged` are those that the commit tags; `ours` are branches that it removes. With `unit`, which
    gives the table's companions, restore points are made and dropped.
    """
    beside, keep, now = lake.beside, lake.keep.of(state), now_ms()
    if beside is None:
        return None
    pending = head not in state.snapshots
    chain = list(state.ancestry(state.head() if pending else head))
    dead = dict(run_branches.find_dead_branches(lake, state, now - keep.dead_ms, ours))
    if not dead and len(state.snapshots) <= keep.count - pending:
        return None
    _register_consumers_once(lake, beside)
    refs = {n: r for n, r in state.refs.items() if n not in dead and n not in ours and n != MAIN}
    place = {snapshot.id: number for number, snapshot in enumerate(chain)}
    branches = [ref.snapshot for ref in refs.values() if ref.type != "tag"]
    joins = (_branch_point(state, branch, place) for branch in branches)
    consumers = beside.consumers_of(state.table)
    needed = [
        keep.count - 1 - pending,
        -1 if pending and bookmark else _newest_bookmark_index(chain),
        *(place[s] for s in (*held, *joins) if s in place),
        *(
            place[s]
            for s in consumers
            if s in place and not _is_abandoned(chain, place[s], now, keep)
        ),
    ]
    last = min(max(needed), len(chain) - 1)
    while last + 1 < len(chain) and chain[last + 1].timestamp_ms > now - keep.age_ms:
        last += 1
    points, companions = _plan_restore_points(state, chain, last, keep, unit)
    refs = {n: r for n, r in refs.items() if n not in points.dropped}
    tags = {*tagged, *points.made.values(), *(r.snapshot for r in refs.values() if r.type == "tag")}
    beyond = [s.id for s in chain[last + 1 :]]
    gone = frozenset(s for s in beyond if s not in tags)
    gone |= _unreachable(state, chain, {*tags, *branches}, points.dropped, now - keep.dead_ms)
    if not dead and len(gone) <= keep.count // 10:
        return None  # many at once now and then cost less than one each time
    if _may_hold_only_record(state, gone) and not beside.is_migrated(state.uuid):
        return None  # the next look at the landing folder makes rows of them
    root = chain[last].id if last >= 0 else head
    named = bookmarks.feed_batches(bookmark or {}) | _named_batches(state, gone)
    moves = _plan_row_moves(state, beside, beyond, root, tags, gone, named)
    changes = (
        *_restore_point_changes(state, points, companions),
        *_table_changes(state, gone, dead),
    )
    made = {each.table: at for each, at in companions}
    return Expiry(changes, moves, root, made)


Companions = list[tuple["TableState", dict[str, int]]]
"""Companions of a table, each with its restore points by name."""


def _plan_restore_points(
    state: TableState,
    chain: Sequence[Snapshot],
    last: int,
    keep: RetentionPolicy,
    unit: Callable[[], Iterable[TableState]] | None,
) -> tuple[RestorePoints, Companions]:
    """The restore points that are made and dropped when main keeps no more than `chain[: last]`."""
    if unit is None:
        return RestorePoints(), []
    now = now_ms()
    since = from_ms(now - keep.age_ms) if MAX_AGE_PROPERTY in state.properties else None
    points = restore_points.choose_restore_points(
        state, chain[last + 1 :], from_ms(now), keep.points, since
    )
    if not points.made and not points.dropped:
        return points, []
    return restore_points.match_companions(state, points, unit())


def _restore_point_changes(
    state: TableState, points: RestorePoints, companions: Companions
) -> Iterator[TableChange]:
    for each, made in ((state, points.made), *companions):
        yield from restore_points.ref_changes(each, made, points.dropped)


def _unreachable(
    state: TableState,
    chain: Sequence[Snapshot],
    heads: Collection[int],
    dropped: Mapping[str, int],
    before_ms: int,
) -> frozenset[int]:
    """The snapshots that no ref leads to, once they are old or their restore point is dropped."""
    reached = {s.id for head in heads for s in state.ancestry(head)} | {s.id for s in chain}
    left = {*dropped.values()}
    return frozenset(
        s.id for s in state.snapshots.values()
        if s.id not in reached and (s.id in left or s.timestamp_ms < before_ms)
    )  # fmt: skip


def list_consumers(
    table: str, into: str, bookmark: Mapping[str, object]
) -> Iterator[tuple[str, str, int]]:
    """From which snapshots of its sources a table goes on: source, consumer, snapshot."""
    for source, snapshot in bookmark.items():
        if isinstance(snapshot, int) and "." in source:
            yield source, f"{table}@{into}", snapshot


def _register_consumers_once(lake: Lake, beside: ConsumptionStore) -> None:
    """Register, once in a catalog's life, the consumers that were there before there were rows."""
    if beside.knows_consumers or beside.is_migrated(_EVERY_TABLE):
        beside.knows_consumers = True
        return
    found = [
        each
        for state in lake.states(lake.tables()).values()
        for name, ref in state.refs.items()
        if ref.type == "branch" and not name.startswith(RUN_PREFIX)
        for each in list_consumers(state.table, name, bookmarks.read(state, name))
    ]
    beside.register(found)
    beside.migrate(_EVERY_TABLE, ())
    beside.knows_consumers = True


def _may_hold_only_record(state: TableState, gone: Collection[int]) -> bool:
    """Whether the summaries of snapshots may be all that says which files landed."""
    texts = (state.snapshot(each).summary.get(bookmarks.BOOKMARK, "") for each in gone)
    return any('"files"' in text for text in texts)


def _newest_bookmark_index(chain: Sequence[Snapshot]) -> int:
    """The place of the newest bookmark in main's ancestry, which says what was consumed."""
    marked = (n for n, snapshot in enumerate(chain) if bookmarks.BOOKMARK in snapshot.summary)
    return next(marked, -1)


def _is_abandoned(chain: Sequence[Snapshot], place: int, now: int, keep: RetentionPolicy) -> bool:
    """Whether a consumer has been behind for so long that it holds nothing any more."""
    return place > 0 and chain[place - 1].timestamp_ms < now - keep.dead_ms


def _branch_point(state: TableState, head: int, place: Mapping[int, int]) -> int | None:
    """Where a branch leaves main's ancestry."""
    return next((s.id for s in state.ancestry(head) if s.id in place), None)


def _plan_row_moves(
    state: TableState,
    beside: ConsumptionStore,
    beyond: Sequence[int],
    root: int,
    tags: Collection[int],
    gone: frozenset[int],
    named: frozenset[bookmarks.Batch],
) -> RowMoves:
    """Where rows of main's ancestors go: to the new root, and to tags that descend from them.

    `beyond` are main's ancestors behind the root, newest first; tags among them stay alone.
    """
    before = beside.anchors(state.uuid)
    bindings = {anchor: bound - gone for anchor, bound in before.items()}
    if beyond:
        old_root = beyond[-1]
        alone = frozenset(s for s in beyond if s in tags)
        for anchor, bound in before.items():
            if old_root in bound:
                bindings[anchor] |= alone | {root}
    anchors = _merge_equal_anchors(before, bindings)
    above: frozenset[int] = frozenset({root})
    for snapshot in beyond:  # newest first: what was passed descends from what comes
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
    """Of each anchor that has become bound to the same as another one, that other one.

    They do so when a tag between them is dropped. The one that was bound to more is the older one:
    it has the more rows, so that the other one's are moved.
    """
    first: dict[frozenset[int], int] = {}
    moved: dict[int, int] = {}
    for anchor in sorted(before, key=lambda each: len(before[each]), reverse=True):
        bound = bindings[anchor]
        if bound and first.setdefault(bound, anchor) != anchor:
            moved[anchor], bindings[anchor] = first[bound], frozenset()
    return moved


def _named_batches(state: TableState, gone: frozenset[int]) -> frozenset[bookmarks.Batch]:
    """The batches of feeds that bookmarks of kept snapshots name."""
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
