"""Compare a table with its contract: the schema changes to apply, and the problems.

A change keeps every stored value readable. Any other difference is a problem, and if there is a
problem, no change is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from thermocline.contract import schema_changes
from thermocline.contract.definition import SCD2_COLUMNS, Column, Contract, DriftMode, TableShape
from thermocline.contract.problems import Problem, build_contract_error, display_path
from thermocline.contract.schema_changes import FieldPath, SchemaChange
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct, Type

Member = Column | Field

_PROMOTIONS = {("int", "long"), ("float", "double")}
_SCD2_NAMES = {column.name for column in SCD2_COLUMNS}


@dataclass(frozen=True)
class Evolution:
    """Changes from a table's shape to its contract, in the order to apply them."""

    changes: tuple[SchemaChange, ...] = ()
    problems: tuple[Problem, ...] = ()

    def require_changes(self) -> tuple[SchemaChange, ...]:
        """Return the changes; raise ContractError if there are problems."""
        if self.problems:
            raise build_contract_error(self.problems)
        return self.changes

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the changes."""
        return schema_changes.apply_changes(self.require_changes(), shape)


def plan_evolution(current: TableShape, expected: Contract) -> Evolution:
    """Return the changes that bring a table of the current shape to the contract.

    Renames and drops must be declared in the contract, and have no effect once applied. Columns
    that drift added (`drift: add`) stay, after those of the contract. The order of key columns does
    not matter, because a table stores the key as a set.
    """
    return _Comparison(current, expected).build()


def is_promotion(old: Type, new: Type) -> bool:
    """Return whether Iceberg can promote the old type to the new one without changing values."""
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return new.scale == old.scale and new.precision > old.precision
    if isinstance(old, Primitive) and isinstance(new, Primitive):
        return (old.name, new.name) in _PROMOTIONS
    return False


class _Comparison:
    def __init__(self, current: TableShape, expected: Contract) -> None:
        self.current = current
        self.contract = expected
        self.expected = expected.shape
        self.dropped = {tuple(path.split(".")) for path in expected.dropped}
        self.changes: list[SchemaChange] = []
        self.problems: list[Problem] = []
        self._line = expected.line

    def build(self) -> Evolution:
        self._compare_members(self.current.columns, self.expected.columns, ())
        self._compare_table_properties()
        ordered = chain.from_iterable(
            (change for change in self.changes if type(change) is kind)
            for kind in schema_changes.APPLY_ORDER
        )
        return Evolution(tuple(ordered), tuple(self.problems))

    def _compare_table_properties(self) -> None:
        """Compare key, partitioning and sort order, using the new names of renamed columns."""
        renames = [
            c
            for c in self.changes
            if isinstance(c, schema_changes.RenameColumn) and len(c.path) == 1
        ]
        now = schema_changes.apply_changes(renames, self.current)
        if set(now.key) != set(self.expected.key):
            self.changes.append(schema_changes.ChangeKey(now.key, self.expected.key))
        if now.partition != self.expected.partition:
            self.changes.append(
                schema_changes.ChangePartitioning(now.partition, self.expected.partition)
            )
        if now.sort != self.expected.sort:
            self.changes.append(schema_changes.ChangeSortOrder(now.sort, self.expected.sort))

    def _compare_members(
        self, current: Sequence[Member], expected: Sequence[Member], path: FieldPath
    ) -> None:
        """Compare the columns of the table, or the fields of the struct at a path."""
        line = self._line
        there = {member.name: member for member in current}
        names = {member.name for member in expected}
        order: dict[str, str] = {}
        for member in expected:
            self._line = member.line or line
            old = self._find_predecessor(member, there, names, order, path)
            if old is None:
                continue
            order[old.name] = member.name
            self._compare_member(old, member, (*path, member.name))
        self._line = line
        left = [member for member in current if member.name not in order]
        kept = [member.name for member in left if not self._check_removed(member, path)]
        added = [member.name for member in expected if member.name not in order.values()]
        arrived = [order.get(m.name, m.name) for m in current if m.name in (*order, *kept)]
        target = [*(member.name for member in expected), *kept]
        if [*arrived, *added] != target:
            self.changes.append(schema_changes.ReorderColumns(path, tuple(target)))

    def _find_predecessor(
        self,
        member: Member,
        there: dict[str, Member],
        names: set[str],
        taken: dict[str, str],
        path: FieldPath,
    ) -> Member | None:
        """Return the current member that becomes this one, or None after recording a new member."""
        here, old = (*path, member.name), member.renamed_from
        if old is not None and old in there and old != member.name:
            if old in names:
                hint = "remove renamedFrom once the rename has been applied"
                self._report(here, f"renamed from {old}, which the contract still has", hint)
            elif member.name in there:
                hint = f"remove renamedFrom, and list {_join_path((*path, old))} under dropped"
                self._report(here, f"renamed from {old}, but the table has both", hint)
                taken[old] = old
            elif old in taken:
                self._report(here, f"renamed from {old}, as is {taken[old]}")
                return None
            else:
                self.changes.append(schema_changes.RenameColumn((*path, old), member.name))
                return there[old]
        if member.name in there:
            return there[member.name]
        twin = next((n for n in there if n.lower() == member.name.lower()), None)
        if twin is not None:
            hint = f"declare renamedFrom: {twin}"
            self._report(here, f"differs from {twin} only by case", hint)
            taken[twin] = member.name
        elif member.required:
            self._report(here, *_explain_required(member, path))
        else:
            self.changes.append(schema_changes.AddColumn(here, member.type, member.doc))
        return None

    def _check_removed(self, member: Member, path: FieldPath) -> bool:
        """Return whether a member that the contract does not have is removed (or a problem)."""
        here = (*path, member.name)
        if here not in self.dropped:
            if self.contract.drift is DriftMode.ADD:
                return False
            what = "is in the table but not in the contract"
            hint = f"keep it, or list {_join_path(here)} under dropped"
            self._report(here, what, hint)
            return True
        if not path and member.name in self.current.key:
            self._report(here, "is part of the key and cannot be dropped")
        elif not path and any(p.column == member.name for p in self.current.partition):
            hint = "partition by other columns first, and drop it in a later version"
            self._report(here, "is a partition column and cannot be dropped", hint)
        else:
            self.changes.append(schema_changes.DropColumn(here))
        return True

    def _compare_member(self, old: Member, new: Member, path: FieldPath) -> None:
        self._compare_nullability(old.required, new.required, path)
        if (old.doc or None) != (new.doc or None):
            self.changes.append(schema_changes.SetDoc(path, new.doc or None))
        self._compare_type(old.type, new.type, path)

    def _compare_nullability(self, old: bool, new: bool, path: FieldPath) -> None:
        if old and not new:
            self.changes.append(schema_changes.MakeOptional(path))
        elif new and not old:
            hint = "stored rows may have nulls; keep it optional and add a nullValues rule"
            self._report(path, "cannot become required", hint)

    def _compare_type(self, old: Type, new: Type, path: FieldPath) -> None:
        match old, new:
            case Struct(before), Struct(after):
                self._compare_members(before, after, path)
            case List(), List():
                element = (*path, "element")
                self._compare_nullability(old.element_required, new.element_required, element)
                self._compare_type(old.element, new.element, element)
            case Map(), Map():
                value = (*path, "value")
                if old.key != new.key:
                    hint = "declare it as a new column"
                    what = f"{old.key} → {new.key} changes a map's key"
                    self._report((*path, "key"), what, hint)
                self._compare_nullability(old.value_required, new.value_required, value)
                self._compare_type(old.value, new.value, value)
            case _ if is_promotion(old, new):
                self.changes.append(schema_changes.PromoteType(path, old, new))
            case _ if old != new:
                what = f"{old} → {new} {_describe_type_change(old, new)}"
                self._report(path, what, "declare it as a new column")

    def _report(self, path: FieldPath, what: str, hint: str = "") -> None:
        file = display_path(self.contract.path) if self.contract.path else ""
        self.problems.append(Problem(file, self._line, _join_path(path), what, hint))


def _join_path(path: FieldPath) -> str:
    return ".".join(path)


def _describe_type_change(old: Type, new: Type) -> str:
    if is_promotion(new, old):
        return "narrows"
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return "changes the scale"
    return "is another type"


def _explain_required(member: Member, path: FieldPath) -> tuple[str, str]:
    if not path and member.name in _SCD2_NAMES:
        return "the table has no history", "create a new table for scd2"
    hint = "stored rows have no value for it; add it as optional"
    return "a new column cannot be required", hint
