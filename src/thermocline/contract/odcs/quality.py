"""Parse quality rules: those in `quality`, and those implied by other properties.

`enum`, `unique`, the limits of a logical type and relationships are rules as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Column, Rule
from thermocline.contract.identifiers import check_name
from thermocline.contract.odcs.bounds import read_bounds, read_within
from thermocline.contract.odcs.property_types import UNKNOWN
from thermocline.contract.odcs.value_checks import check_pattern, check_value, is_ordered
from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote
from thermocline.contract.types import List, Map, Primitive, Struct, Type

if TYPE_CHECKING:
    from open_data_contract_standard.model import (
        DataQuality,
        Relationship,
        SchemaObject,
        SchemaProperty,
    )

METRICS = (
    "nullValues", "missingValues", "duplicateValues", "rowCount", "invalidValues", "freshness",
)  # fmt: skip
# Names that version 3.0 of the standard used.
_OLD_METRICS = {"nullCheck": "nullValues", "uniqueCheck": "duplicateValues",
                "duplicateCount": "duplicateValues"}  # fmt: skip
_LIMITS = {
    "min": "min", "minimum": "min", "max": "max", "maximum": "max",
    "exclusiveMin": "exclusive_min", "exclusiveMinimum": "exclusive_min",
    "exclusiveMax": "exclusive_max", "exclusiveMaximum": "exclusive_max",
}  # fmt: skip
_LENGTHS = {"minLength": "min", "maxLength": "max"}
ARGUMENTS = ("properties", "property", "validValues", "pattern", "missingValues", "reference",
              "within", *_LENGTHS, *_LIMITS)  # fmt: skip
_PLACEHOLDERS = re.compile(r"\$?\{(object|table|property|column)\}")
_TEXT = Primitive("string")
_TIME_TYPES = (Primitive("date"), Primitive("timestamp"), Primitive("timestamptz"))


def read_rules(
    schema: SchemaObject,
    at: DocumentPath,
    layer: str,
    columns: Sequence[Column],
    report: ProblemReport,
) -> tuple[Rule, ...]:
    """Return all rules of a table: those of its columns in order, then its own."""
    reader = _RuleReader(schema.name or "", layer, {c.name: c for c in columns}, report)
    rules: list[Rule] = []
    for index, entry in enumerate(schema.properties or ()):
        if entry.name is not None and entry.name in reader.columns:
            rules += reader.read_column(entry, entry.name, (*at, "properties", index))
    for index, link in enumerate(schema.relationships or ()):
        rules += reader.read_relationship(link, (*at, "relationships", index), None)
    for index, quality in enumerate(schema.quality or ()):
        rules += reader.read_quality(quality, (*at, "quality", index), None)
    return tuple(rules)


@dataclass
class _RuleReader:
    table: str
    layer: str
    columns: Mapping[str, Column]
    report: ProblemReport

    def read_column(self, entry: SchemaProperty, name: str, at: DocumentPath) -> list[Rule]:
        """Return the rules of a column's own entry."""
        rules: list[Rule] = []
        if entry.unique:
            rules += self._build_rule("duplicates", [name], {}, (*at, "unique"))
        if entry.enum:
            values = [value.value for value in entry.enum]
            rules += self._build_rule("accepted", [name], {"values": values}, (*at, "enum"))
        options = entry.logicalTypeOptions or {}
        rules += self._read_conditions(name, options, (*at, "logicalTypeOptions"))
        for index, link in enumerate(entry.relationships or ()):
            rules += self.read_relationship(link, (*at, "relationships", index), name)
        for index, quality in enumerate(entry.quality or ()):
            rules += self.read_quality(quality, (*at, "quality", index), name)
        return rules

    def _read_conditions(
        self, name: str, options: Mapping[str, Any], at: DocumentPath
    ) -> list[Rule]:
        """Return the rules of limits, lengths, a pattern and accepted values."""
        rules: list[Rule] = []
        limits = {ours: options[key] for key, ours in _LIMITS.items() if key in options}
        if limits:
            first = next(key for key in _LIMITS if key in options)
            rules += self._build_rule("range", [name], limits, (*at, first))
        lengths = {ours: options[key] for key, ours in _LENGTHS.items() if key in options}
        if lengths:
            first = next(key for key in _LENGTHS if key in options)
            rules += self._build_rule("length", [name], lengths, (*at, first))
        if "pattern" in options:
            pattern = {"pattern": options["pattern"]}
            rules += self._build_rule("pattern", [name], pattern, (*at, "pattern"))
        if "validValues" in options:
            values = {"values": options["validValues"]}
            rules += self._build_rule("accepted", [name], values, (*at, "validValues"))
        if "reference" in options:
            rules += self._build_reference([name], options["reference"], (*at, "reference"))
        return rules

    def read_relationship(
        self, link: Relationship, at: DocumentPath, column: str | None
    ) -> list[Rule]:
        """Return the rule of a foreign key."""
        if link.type not in (None, "foreignKey"):
            self.report.add((*at, "type"), column or "relationships", "must be foreignKey")
            return []
        if link.to is None:
            self.report.add(at, column or "relationships", "a relationship needs `to`")
            return []
        if column is not None:
            return self._build_reference([column], link.to, (*at, "to"))
        sources = [link.from_] if isinstance(link.from_, str) else link.from_ or []
        names = [source.removeprefix(f"{self.table}.") for source in sources]
        if not names:
            self.report.add(at, "relationships", "a relationship of the table needs `from`")
            return []
        return self._build_reference(names, link.to, (*at, "to"))

    def _build_reference(self, columns: list[str], to: Any, at: DocumentPath) -> list[Rule]:
        targets = [to] if isinstance(to, str) else to if isinstance(to, list) else []
        tables, names = set(), []
        for target in targets:
            parts = str(target).split(".")
            if not 2 <= len(parts) <= 3 or any(check_name(part) for part in parts):
                hint = "write layer.table.column or table.column"
                self.report.add(at, columns[0], f"{quote(target)} is not a reference", hint)
                return []
            tables.add(".".join(parts[:-1]) if len(parts) == 3 else f"{self.layer}.{parts[0]}")
            names.append(parts[-1])
        if len(tables) != 1 or len(names) != len(columns):
            what = f"refers from {len(columns)} columns to {len(names)} of {len(tables)} tables"
            self.report.add(at, columns[0], what, "both sides need the same number of columns")
            return []
        arguments = {"table": tables.pop(), "columns": tuple(names)}
        return self._build_rule("reference", columns, arguments, at)

    def read_quality(self, entry: DataQuality, at: DocumentPath, column: str | None) -> list[Rule]:
        """Return the rules of a `quality` entry. Entries for people or other tools have none."""
        where = column or f"quality[{at[-1]}]"
        kind = entry.type or ("sql" if entry.query and not entry.metric else "library")
        if kind in ("text", "custom"):
            return []
        if kind not in ("library", "sql"):
            kinds = ("library", "sql", "text", "custom")
            hint = did_you_mean(kind, kinds) or f"one of {', '.join(kinds)}"
            self.report.add((*at, "type"), where, f"unknown type {quote(kind)}", hint)
            return []
        severity = entry.severity or "error"
        if severity not in ("error", "warning"):
            what = f"severity {quote(severity)} is neither error nor warning"
            self.report.add((*at, "severity"), where, what)
        base = Rule(kind, severity=severity, name=entry.name or "", line=self.report.line_of(at))
        rules = self._read_sql(entry, at, column, where) if kind == "sql" else None
        if rules is None:
            rules = self._read_library(entry, at, column, where)
        return [self._apply_entry(rule, base, len(rules)) for rule in rules]

    @staticmethod
    def _apply_entry(rule: Rule, base: Rule, of: int) -> Rule:
        name = f"{base.name} ({', '.join(rule.columns)})" if base.name and of > 1 else base.name
        return Rule(
            rule.kind, rule.columns, rule.arguments, rule.bounds, rule.unit, base.severity, name,
            base.line,
        )  # fmt: skip

    def _read_sql(
        self, entry: DataQuality, at: DocumentPath, column: str | None, where: str
    ) -> list[Rule]:
        bounds, unit = read_bounds(entry, at, where, None, self.report)
        place = (*at, "query")
        if not entry.query or not re.match(r"\s*(select|with)\b", entry.query, re.IGNORECASE):
            what = "a rule of type sql needs a query that selects a number"
            (self.report.add if entry.query else self.report.add_missing)(at, where, what)
            return []
        used = set(_PLACEHOLDERS.findall(entry.query))
        if not used & {"object", "table"}:
            hint = "write {object} instead of the table's name"
            self.report.add(place, where, "the query does not read this table", hint)
        if column is None and used & {"property", "column"}:
            self.report.add(place, where, "{property} is allowed only in a column's rule")

        def written(match: re.Match[str]) -> str:
            return "{object}" if match[1] in ("object", "table") else column or match[0]

        query = _PLACEHOLDERS.sub(written, entry.query)
        return self._build_rule(
            "sql", [column] if column else [], {"query": query}, at, bounds=bounds, unit=unit
        )

    def _read_library(
        self, entry: DataQuality, at: DocumentPath, column: str | None, where: str
    ) -> list[Rule]:
        metric = entry.metric or _OLD_METRICS.get(entry.rule or "", entry.rule)
        if metric not in METRICS:
            what = f"unknown metric {quote(metric)}" if metric else "the rule has no metric"
            hint = did_you_mean(metric or "", METRICS) or f"one of {', '.join(METRICS)}"
            self.report.add_missing(at, where, what, hint)
            return []
        arguments = entry.arguments or {}
        for key in arguments:
            if key not in ARGUMENTS:
                place = (*at, "arguments", key)
                hint = did_you_mean(key, ARGUMENTS)
                self.report.add(place, where, f"unknown argument {quote(key)}", hint)
        if metric == "freshness":
            return self._read_freshness(entry, arguments, at, column, where)
        default = None if metric == "rowCount" else 0
        bounds, unit = read_bounds(entry, at, where, default, self.report)
        if metric == "rowCount":
            if unit == "percent":
                self.report.add((*at, "unit"), where, "rowCount cannot be a percentage")
            return self._build_rule("row_count", [], {}, at, bounds=bounds, unit=unit)
        columns = self._read_columns(arguments, at, column, where)
        if metric == "duplicateValues":
            groups = [columns] if columns else []
        else:
            groups = [[name] for name in columns]
        rules: list[Rule] = []
        for group in groups:
            rules += self._read_metric(metric, group, arguments, at, where)
        return [
            Rule(rule.kind, rule.columns, rule.arguments, bounds, unit) for rule in rules
        ]  # fmt: skip

    def _read_metric(
        self,
        metric: str,
        columns: list[str],
        arguments: Mapping[str, Any],
        at: DocumentPath,
        where: str,
    ) -> list[Rule]:
        if metric == "duplicateValues":
            return self._build_rule("duplicates", columns, {}, at)
        if metric == "invalidValues":
            rules = self._read_conditions(columns[0], arguments, (*at, "arguments"))
            if len(rules) > 1:
                hint = "write each condition as a separate rule"
                self.report.add(at, where, "the rule has more than one condition", hint)
            elif not rules and not set(arguments) & {*ARGUMENTS[2:]}:
                hint = "add validValues, pattern, min, max, minLength, maxLength or reference"
                self.report.add_missing(at, where, "invalidValues has no condition", hint)
            return rules
        values = arguments.get("missingValues")
        if values is None:
            return self._build_rule("missing", columns, {}, at)
        place = (*at, "arguments", "missingValues")
        if not isinstance(values, list):
            self.report.add(place, where, "missingValues must be a list")
            return []
        # Null is always missing; the other values represent it.
        markers = {"values": [value for value in values if value is not None]}
        return self._build_rule("missing", columns, markers if markers["values"] else {}, place)

    def _read_freshness(
        self,
        entry: DataQuality,
        arguments: Mapping[str, Any],
        at: DocumentPath,
        column: str | None,
        where: str,
    ) -> list[Rule]:
        within = read_within(entry, arguments, at, where, self.report)
        columns = self._read_columns(arguments, at, column, where)
        if within is None or not columns:
            return []
        return self._build_rule("freshness", columns[:1], {"within": within}, at)

    def _read_columns(
        self, arguments: Mapping[str, Any], at: DocumentPath, column: str | None, where: str
    ) -> list[str]:
        if column is not None:
            return [column]
        value = arguments.get("properties", arguments.get("property"))
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            hint = "name the columns as arguments: {properties: [a, b]}"
            self.report.add_missing(at, where, "the rule names no column", hint)
            return []
        return [str(name) for name in names]

    def _build_rule(
        self, kind: str, columns: list[str], arguments: Mapping[str, Any], at: DocumentPath,
        bounds: tuple[tuple[str, Any], ...] = (("mustBe", 0),), unit: str = "rows",
    ) -> list[Rule]:  # fmt: skip
        """Return the rule in a list, or an empty list after reporting why it is invalid."""
        problems = len(self.report.problems)
        for name in columns:
            column = self.columns.get(name)
            if column is None:
                hint = did_you_mean(name, list(self.columns))
                self.report.add(at, kind, f"there is no column {quote(name)}", hint)
            elif column.type != UNKNOWN:
                self._check_fit(kind, column, arguments, at)
        if len(self.report.problems) > problems:
            return []
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
        line = self.report.line_of(at)
        return [Rule(kind, tuple(columns), tuple(frozen.items()), bounds, unit, line=line)]

    def _check_fit(
        self, kind: str, column: Column, arguments: Mapping[str, Any], at: DocumentPath
    ) -> None:
        """Report a rule that does not apply to a column of that type."""
        flaw = _check_column_type(kind, column.type)
        if flaw is None and kind in ("accepted", "missing"):
            values = arguments.get("values", [])
            if not isinstance(values, list) or (kind == "accepted" and not values):
                flaw = "validValues must be a list of values"
            else:
                flaws = (check_value(value, column.type) for value in values)
                flaw = next((flaw for flaw in flaws if flaw), None)
        elif flaw is None and kind == "range":
            flaws = (check_value(value, column.type) for value in arguments.values())
            flaw = next((flaw for flaw in flaws if flaw), None) or _check_range(arguments)
        elif flaw is None and kind == "length":
            if not all(isinstance(v, int) and v >= 0 for v in arguments.values()):
                flaw = "a length must be a whole number of at least 0"
            else:
                flaw = _check_range(arguments)
        elif flaw is None and kind == "pattern":
            flaw = check_pattern(arguments["pattern"])
        if flaw is not None:
            self.report.add(at, column.name, flaw)


def _check_column_type(kind: str, type_: Type) -> str | None:
    if isinstance(type_, Struct | List | Map) and kind not in ("missing", "sql"):
        return f"a rule of kind {kind} needs a column that is not nested, not {type_}"
    if kind in ("pattern", "length") and type_ != _TEXT:
        return f"{kind} needs a text column, not {type_}"
    if kind == "range" and not is_ordered(type_):
        return f"a range needs numbers, dates or times, not {type_}"
    if kind == "freshness" and type_ not in _TIME_TYPES:
        return f"freshness needs a date or timestamp, not {type_}"
    return None


def _check_range(arguments: Mapping[str, Any]) -> str | None:
    lower = arguments.get("min", arguments.get("exclusive_min"))
    upper = arguments.get("max", arguments.get("exclusive_max"))
    if lower is not None and upper is not None and type(lower) is type(upper) and lower > upper:
        return f"no value is between {lower} and {upper}"
    return None
