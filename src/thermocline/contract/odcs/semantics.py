"""Check that the parts of a contract are consistent."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from thermocline.contract.definition import Column, Contract, PartitionField, WriteMode
from thermocline.contract.identifiers import check_column_name
from thermocline.contract.odcs.property_types import UNKNOWN
from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote
from thermocline.contract.types import Decimal, Fixed, List, Map, Primitive, Struct, Type

_DATES = {"date", "timestamp", "timestamptz"}
_TIMESTAMPS = {"timestamp", "timestamptz"}
_TRANSFORM_TYPES = {
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _TIMESTAMPS,
    "bucket": {"int", "long", "decimal", "time", "string", "uuid", "fixed", "binary", *_DATES},
    "truncate": {"int", "long", "decimal", "string", "binary"},
    "identity": {
        "boolean", "int", "long", "decimal", "time", "string", "uuid", "fixed", "binary", *_DATES,
    },
}  # fmt: skip


def check_semantics(
    contract: Contract,
    columns: dict[str, DocumentPath],
    settings: dict[str, DocumentPath],
    report: ProblemReport,
) -> None:
    """Report inconsistencies between parts of the contract.

    `columns` and `settings` have the position of each column and each setting.
    """
    check = _SemanticCheck(contract, columns, settings, report)
    check.check_key()
    check.check_partition()
    check.check_order()
    check.check_write()
    check.check_evolution()


class _SemanticCheck:
    def __init__(
        self,
        contract: Contract,
        columns: dict[str, DocumentPath],
        settings: dict[str, DocumentPath],
        report: ProblemReport,
    ) -> None:
        self.contract = contract
        self.columns = columns
        self.settings = settings
        self.report = report
        self.known = {column.name: column for column in contract.table_columns}

    def check_key(self) -> None:
        for name in self.contract.key:
            column = self.known[name]
            if not column.required:
                place = (*self.columns[name], "required")
                self.report.add(place, name, "a key column must be required", "add required: true")
            if column.type in (Primitive("float"), Primitive("double")) or _is_nested(column.type):
                place = self.columns[name]
                self.report.add(place, name, f"{column.type} cannot be a key", "use another type")

    def check_partition(self) -> None:
        names = {column.name.lower() for column in self.contract.table_columns}
        for partition in self.contract.partition:
            column = self.known[partition.column]
            place = (*self.columns[partition.column], "customProperties")
            if partition.transform == "identity":
                place = (*self.columns[partition.column], "partitioned")
            if (
                column.type != UNKNOWN
                and _type_name(column.type) not in _TRANSFORM_TYPES[partition.transform]
            ):
                what = f"{partition.transform} does not fit {column.type}"
                self.report.add(place, column.name, what, _list_fitting_types(partition))
            elif partition.transform != "identity" and partition.name.lower() in names:
                what = f"its partition field {partition.name} has the name of a column"
                self.report.add(place, column.name, what, "rename that column")

    def check_order(self) -> None:
        for name in self.contract.order_by:
            self._check_sortable(name, "orderBy")
        for sort in self.contract.sort:
            self._check_sortable(sort.column, "sortBy")
        for name in dict.fromkeys(self.contract.cluster):
            self._check_sortable(name, "sortBy")
        name = self.contract.freshness_column or ""
        column = self._find_column(name, "freshness") if name else None
        if column and column.type != UNKNOWN and _type_name(column.type) not in _DATES:
            what = f"freshness needs a date or timestamp, and {name} is {column.type}"
            self.report.add(self.settings["freshness"], "freshness", what)

    def check_write(self) -> None:
        contract = self.contract
        if self.report.is_broken(self.settings.get("write", ())):
            return
        if contract.write in (WriteMode.MERGE, WriteMode.SCD2) and not contract.key:
            hint = "mark key columns with primaryKey: true"
            self._report_setting("write", f"{contract.write} needs a key", hint)
        if contract.write is WriteMode.PARTITIONS and not contract.partition:
            hint = "mark a column with partitioned: true"
            self._report_setting("write", "partitions needs a partitioned table", hint)
        if contract.write is WriteMode.SCD2:
            self._check_scd2()
        if contract.delete_when and contract.write not in (WriteMode.MERGE, WriteMode.SCD2):
            self._report_setting("deleteWhen", f"has no effect with write: {contract.write}")

    def _check_scd2(self) -> None:
        hint = "set it to the timestamp from which a version is valid"
        if not self.contract.order_by:
            self._report_setting("write", "scd2 needs orderBy", hint)
            return
        name = self.contract.order_by[0]
        column = self.known.get(name)
        if column is None or column.type == UNKNOWN:
            return
        if _type_name(column.type) not in _TIMESTAMPS:
            what = f"scd2 needs a timestamp first, and {name} is {column.type}"
            self._report_setting("orderBy", what, hint)
        elif name.startswith("_valid_"):
            self._report_setting("orderBy", f"{name} is computed by scd2", hint)

    def check_evolution(self) -> None:
        names = {column.name for column in self.contract.columns}
        origins: dict[str, str] = {}
        for path in self.contract.dropped:
            flaw = next((f for part in path.split(".") if (f := check_column_name(part))), None)
            if flaw:
                self._report_setting("dropped", *flaw)
            elif path in names:
                self._report_setting(
                    "dropped", f"{path} is still among the columns", "remove it from one of them"
                )
        for column in self.contract.columns:
            old = column.renamed_from
            if old is None:
                continue
            what = ""
            if old in names:
                what = f"renamedFrom {quote(old)} is still among the columns"
            elif old in self.contract.dropped:
                what = f"renamedFrom {quote(old)} is also dropped"
            elif old in origins:
                what = f"renamedFrom {quote(old)} is also that of {origins[old]}"
            elif check_column_name(old):
                what = f"renamedFrom {quote(old)} is not a valid column name"
            if what:
                hint = "remove renamedFrom once the rename has been applied"
                place = (*self.columns[column.name], "customProperties")
                self.report.add(place, column.name, what, hint)
            origins[old] = column.name

    def _check_sortable(self, name: str, setting: str) -> None:
        column = self._find_column(name, setting)
        if column is not None and _is_nested(column.type):
            self._report_setting(setting, f"{name} is {column.type}, which cannot be sorted")

    def _find_column(self, name: str, setting: str) -> Column | None:
        column = self.known.get(name)
        if column is None:
            self._report_setting(
                setting, f"there is no column {quote(name)}", did_you_mean(name, [*self.known])
            )
        return column

    def _report_setting(self, setting: str, what: str, hint: str = "") -> None:
        self.report.add(self.settings.get(setting, ("customProperties",)), setting, what, hint)


def check_references(
    contract: Contract,
    contracts: Iterable[Contract],
    invalid: Collection[str],
    report: ProblemReport,
) -> None:
    """Report rules that refer to tables or columns that no contract has.

    References to `invalid` tables are skipped, because their contracts could not be parsed.
    """
    tables = {other.table: other for other in contracts}
    for rule in contract.rules:
        if rule.kind != "reference" or rule.argument("table") in invalid:
            continue
        at: DocumentPath = ("line", rule.line)
        other = tables.get(rule.argument("table"))
        if other is None:
            name = rule.argument("table")
            hint = did_you_mean(name, [*tables])
            report.add(at, ", ".join(rule.columns), f"{name} has no contract", hint)
            continue
        for name in rule.argument("columns"):
            if other.column(name) is None:
                hint = did_you_mean(name, [column.name for column in other.table_columns])
                what = f"{other.table} has no column {quote(name)}"
                report.add(at, ", ".join(rule.columns), what, hint)


def _is_nested(type_: Type) -> bool:
    return isinstance(type_, Struct | List | Map)


def _type_name(type_: Type) -> str:
    match type_:
        case Primitive(name):
            return name
        case Decimal():
            return "decimal"
        case Fixed():
            return "fixed"
    return "nested"


def _list_fitting_types(partition: PartitionField) -> str:
    types = sorted(_TRANSFORM_TYPES[partition.transform])
    return f"it fits {', '.join(types)}"
