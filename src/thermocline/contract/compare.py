"""How a table differs from its contract: what to change, and what may not be changed.

Only what keeps every value readable is a change. Everything else is a problem, and with a problem
nothing is to be applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from thermocline.contract.changes import (
    ORDER,
    Add,
    Change,
    Describe,
    Drop,
    Path,
    Promote,
    Rekey,
    Relax,
    Rename,
    Reorder,
    Repartition,
    Resort,
    apply,
)
from thermocline.contract.definition import SCD2_COLUMNS, Column, Contract, Drift, Shape
from thermocline.contract.problems import Problem, refuse, shown_path
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct, Type

Member = Column | Field

_PROMOTIONS = {("int", "long"), ("float", "double")}
_HISTORY = {column.name for column in SCD2_COLUMNS}


@dataclass(frozen=True)
class Evolution:
    """The way from a table's shape to its contract: changes in an order that can be applied."""

    changes: tuple[Change, ...] = ()
    problems: tuple[Problem, ...] = ()

    def allowed(self) -> tuple[Change, ...]:
        """The changes; raises ContractError with all problems when there are any."""
        if self.problems:
            raise refuse(self.problems)
        return self.changes

    def apply(self, shape: Shape) -> Shape:
        """What the shape is after the changes."""
        return apply(self.allowed(), shape)


def compare(current: Shape, wanted: Contract) -> Evolution:
    """What it takes to bring a table of the current shape to the wanted contract.

    Renames and drops count only when the contract declares them, and are nothing once applied.
    Columns that drift added (`drift: add`) stay, after the contract's own. The order of the key's
    columns is no difference, for a table keeps it as a set.
    """
    return _Comparison(current, wanted).evolution()


def is_promotion(old: Type, new: Type) -> bool:
    """Whether every value of the old type is the same value in the new one, for Iceberg too."""
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return new.scale == old.scale and new.precision > old.precision
    if isinstance(old, Primitive) and isinstance(new, Primitive):
        return (old.name, new.name) in _PROMOTIONS
    return False


class _Comparison:
    def __init__(self, current: Shape, wanted: Contract) -> None:
        self.current = current
        self.contract = wanted
        self.wanted = wanted.shape
        self.dropped = {tuple(path.split(".")) for path in wanted.dropped}
        self.changes: list[Change] = []
        self.problems: list[Problem] = []
        self._line = wanted.line

    def evolution(self) -> Evolution:
        self._members(self.current.columns, self.wanted.columns, ())
        self._around()
        ordered = chain.from_iterable(
            (change for change in self.changes if type(change) is kind) for kind in ORDER
        )
        return Evolution(tuple(ordered), tuple(self.problems))

    def _around(self) -> None:
        """Key, partitioning and sort order, with the names that renamed columns have now."""
        renames = [c for c in self.changes if isinstance(c, Rename) and len(c.path) == 1]
        now = apply(renames, self.current)
        if set(now.key) != set(self.wanted.key):
            self.changes.append(Rekey(now.key, self.wanted.key))
        if now.partition != self.wanted.partition:
            self.changes.append(Repartition(now.partition, self.wanted.partition))
        if now.sort != self.wanted.sort:
            self.changes.append(Resort(now.sort, self.wanted.sort))

    def _members(self, current: Sequence[Member], wanted: Sequence[Member], path: Path) -> None:
        """Columns of the table, or fields of the struct at a path."""
        line = self._line
        there = {member.name: member for member in current}
        names = {member.name for member in wanted}
        order: dict[str, str] = {}
        for member in wanted:
            self._line = member.line or line
            old = self._predecessor(member, there, names, order, path)
            if old is None:
                continue
            order[old.name] = member.name
            self._member(old, member, (*path, member.name))
        self._line = line
        left = [member for member in current if member.name not in order]
        kept = [member.name for member in left if not self._leaves(member, path)]
        added = [member.name for member in wanted if member.name not in order.values()]
        arrived = [order.get(m.name, m.name) for m in current if m.name in (*order, *kept)]
        target = [*(member.name for member in wanted), *kept]
        if [*arrived, *added] != target:
            self.changes.append(Reorder(path, tuple(target)))

    def _predecessor(
        self,
        member: Member,
        there: dict[str, Member],
        names: set[str],
        taken: dict[str, str],
        path: Path,
    ) -> Member | None:
        """What the member was before, or None after noting that it is new."""
        here, old = (*path, member.name), member.renamed_from
        if old is not None and old in there and old != member.name:
            if old in names:
                hint = "remove renamedFrom once the rename has been applied"
                self._problem(here, f"renamed from {old}, which the contract still has", hint)
            elif member.name in there:
                hint = f"remove renamedFrom, and list {_dotted((*path, old))} under dropped"
                self._problem(here, f"renamed from {old}, but the table has both", hint)
                taken[old] = old
            elif old in taken:
                self._problem(here, f"renamed from {old}, as is {taken[old]}")
                return None
            else:
                self.changes.append(Rename((*path, old), member.name))
                return there[old]
        if member.name in there:
            return there[member.name]
        twin = next((n for n in there if n.lower() == member.name.lower()), None)
        if twin is not None:
            hint = f"declare renamedFrom: {twin}"
            self._problem(here, f"differs from {twin} only by case", hint)
            taken[twin] = member.name
        elif member.required:
            self._problem(here, *_why_not_required(member, path))
        else:
            self.changes.append(Add(here, member.type, member.doc))
        return None

    def _leaves(self, member: Member, path: Path) -> bool:
        """Whether a member that the contract does not name goes, or is kept."""
        here = (*path, member.name)
        if here not in self.dropped:
            if self.contract.drift is Drift.ADD:
                return False
            what = "is in the table but not in the contract"
            hint = f"keep it, or list {_dotted(here)} under dropped"
            self._problem(here, what, hint)
            return True
        if not path and member.name in self.current.key:
            self._problem(here, "is part of the key and cannot be dropped")
        elif not path and any(p.column == member.name for p in self.current.partition):
            hint = "partition by other columns first, and drop it in a later version"
            self._problem(here, "is a partition column and cannot be dropped", hint)
        else:
            self.changes.append(Drop(here))
        return True

    def _member(self, old: Member, new: Member, path: Path) -> None:
        self._nullable(old.required, new.required, path)
        if (old.doc or None) != (new.doc or None):
            self.changes.append(Describe(path, new.doc or None))
        self._type(old.type, new.type, path)

    def _nullable(self, old: bool, new: bool, path: Path) -> None:
        if old and not new:
            self.changes.append(Relax(path))
        elif new and not old:
            hint = "rows may hold nulls already; keep it optional and add a nullValues rule"
            self._problem(path, "optional → required tightens", hint)

    def _type(self, old: Type, new: Type, path: Path) -> None:
        match old, new:
            case Struct(before), Struct(after):
                self._members(before, after, path)
            case List(), List():
                element = (*path, "element")
                self._nullable(old.element_required, new.element_required, element)
                self._type(old.element, new.element, element)
            case Map(), Map():
                value = (*path, "value")
                if old.key != new.key:
                    hint = "declare it as a new column"
                    what = f"{old.key} → {new.key} changes a map's key"
                    self._problem((*path, "key"), what, hint)
                self._nullable(old.value_required, new.value_required, value)
                self._type(old.value, new.value, value)
            case _ if is_promotion(old, new):
                self.changes.append(Promote(path, old, new))
            case _ if old != new:
                what = f"{old} → {new} {_verb(old, new)}"
                self._problem(path, what, "declare it as a new column")

    def _problem(self, path: Path, what: str, hint: str = "") -> None:
        file = shown_path(self.contract.path) if self.contract.path else ""
        self.problems.append(Problem(file, self._line, _dotted(path), what, hint))


def _dotted(path: Path) -> str:
    return ".".join(path)


def _verb(old: Type, new: Type) -> str:
    if is_promotion(new, old):
        return "narrows"
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return "changes the scale"
    return "is another type"


def _why_not_required(member: Member, path: Path) -> tuple[str, str]:
    if not path and member.name in _HISTORY:
        return "the table keeps no history so far", "scd2 needs a new table"
    hint = "rows already there have no value; add it as optional"
    return "a new column cannot be required", hint
