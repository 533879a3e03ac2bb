"""Parse the settings of a table: write mode, order, freshness, retention and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from thermocline.contract.definition import (
    CLUSTER_COLUMNS,
    DriftMode,
    IncrementalMode,
    SortField,
    UpdateMode,
    WriteMode,
)
from thermocline.contract.odcs.custom_properties import CustomSetting, read_settings
from thermocline.contract.odcs.durations import parse_duration
from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote

if TYPE_CHECKING:
    from open_data_contract_standard.model import (
        OpenDataContractStandard,
        SchemaObject,
        ServiceLevelAgreementProperty,
    )

_Choice = TypeVar("_Choice", bound=StrEnum)
_ZORDER = re.compile(r"zorder\s*\(", re.IGNORECASE)
_FRESHNESS = ("freshness", "latency")
_SLA_PROPERTIES = (*_FRESHNESS, "retention")


@dataclass(frozen=True)
class TableSettings:
    """Settings of a table: keyword arguments of Contract, without those that are not set.

    `places` has the position of each setting.
    """

    arguments: Mapping[str, Any]
    places: dict[str, DocumentPath]


def read_table_settings(
    document: OpenDataContractStandard,
    schema: SchemaObject,
    at: DocumentPath,
    report: ProblemReport,
) -> TableSettings:
    """Return the table's settings, from the contract's custom and service-level properties."""
    settings = read_settings(document.customProperties, (), "customProperties", "table", report)
    inner = read_settings(schema.customProperties, at, "customProperties", "table", report)
    for name in settings.keys() & inner.keys():
        report.add(inner[name].at, name, "is set both for the contract and for its schema")
    settings |= inner
    places = {name: setting.at for name, setting in settings.items()}
    arguments: dict[str, Any] = {
        "tags": tuple(dict.fromkeys([*(document.tags or ()), *(schema.tags or ())])),
        "write": _read_choice(settings.get("write"), WriteMode, "write", report),
        "updates": _read_choice(settings.get("updates"), UpdateMode, "updates", report),
        "incremental": _read_choice(
            settings.get("incremental"), IncrementalMode, "incremental", report
        ),
        "drift": _read_choice(settings.get("drift"), DriftMode, "drift", report),
        "order_by": _read_texts(settings.get("orderBy"), "orderBy", report),
        "dropped": _read_texts(settings.get("dropped"), "dropped", report),
        **_read_sort(settings.get("sortBy"), report),
        "delete_when": _read_condition(settings.get("deleteWhen"), report),
        "hot": _read_duration(settings.get("hot"), "hot", report),
        "history": _read_duration(settings.get("history"), "history", report),
        "readers": _read_readers(document, report),
        **_read_service_levels(document, schema.name or "", places, report),
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    return TableSettings(given, places)


def _read_readers(
    document: OpenDataContractStandard, report: ProblemReport
) -> tuple[str, ...] | None:
    """Return the roles with read access (the default), or None if there are no roles."""
    if document.roles is None:
        return None
    for index, entry in enumerate(document.roles):
        if not (entry.role or "").strip():
            report.add(("roles", index), "roles", "the entry has no role")
    return tuple(
        entry.role.strip()
        for entry in document.roles
        if entry.role and "read" in re.split(r"\W+", (entry.access or "read").lower())
    )


def _read_choice(
    setting: CustomSetting | None, choices: type[_Choice], name: str, report: ProblemReport
) -> _Choice | None:
    if setting is None:
        return None
    values = [member.value for member in choices]
    if setting.value not in values:
        hint = did_you_mean(str(setting.value), values) or f"one of {', '.join(values)}"
        report.add_broken(setting.at, name, f"unknown value {quote(setting.value)}", hint)
        return None
    return choices(setting.value)


def _read_texts(setting: CustomSetting | None, name: str, report: ProblemReport) -> tuple[str, ...]:
    if setting is None:
        return ()
    values = [setting.value] if isinstance(setting.value, str) else setting.value
    if not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
        report.add(setting.at, name, "must be a column or a list of columns")
        return ()
    stripped = [value.strip() for value in values]
    for value in sorted({value for value in stripped if stripped.count(value) > 1}):
        report.add(setting.at, name, f"{quote(value)} is listed twice")
    return tuple(stripped)


def _read_sort(setting: CustomSetting | None, report: ProblemReport) -> dict[str, Any]:
    """Return the sort order or the z-order."""
    texts = _read_texts(setting, "sortBy", report)
    if setting is not None and any(_ZORDER.match(text) for text in texts):
        return {"cluster": _read_cluster(setting, texts, report)}
    sort = []
    for text in texts:
        column, _, direction = text.partition(" ")
        direction = direction.strip().lower()
        if direction not in ("", "asc", "desc"):
            assert setting is not None
            hint = "write column, column asc or column desc"
            report.add(setting.at, "sortBy", f"cannot parse {quote(text)}", hint)
            continue
        sort.append(SortField(column, direction == "desc"))
    return {"sort": tuple(sort)}


def _read_cluster(
    setting: CustomSetting, texts: tuple[str, ...], report: ProblemReport
) -> tuple[str, ...]:
    found = re.fullmatch(rf"{_ZORDER.pattern}(.*)\)", texts[0], re.IGNORECASE)
    if len(texts) > 1 or found is None:
        what = f"cannot parse {quote(', '.join(texts))}"
        report.add(
            setting.at, "sortBy", what, 'write "zorder(column, column)", in quotes and alone'
        )
        return ()
    columns = tuple(name.strip() for name in found[1].split(","))
    if len(columns) not in CLUSTER_COLUMNS or not all(columns):
        first, last = CLUSTER_COLUMNS[0], CLUSTER_COLUMNS[-1]
        report.add(setting.at, "sortBy", f"a z-order has {first} to {last} columns")
        return ()
    for name in sorted({name for name in columns if columns.count(name) > 1}):
        report.add(setting.at, "sortBy", f"{quote(name)} is listed twice")
    return columns


def _read_condition(setting: CustomSetting | None, report: ProblemReport) -> str | None:
    if setting is None:
        return None
    if not isinstance(setting.value, str) or not setting.value.strip():
        hint = "write it as text, for example \"_op = 'd'\""
        report.add(setting.at, "deleteWhen", "must be a SQL condition", hint)
        return None
    return setting.value.strip()


def _read_duration(
    setting: CustomSetting | None, name: str, report: ProblemReport
) -> timedelta | None:
    return _parse_duration(setting.value, None, setting.at, name, report) if setting else None


def _parse_duration(
    value: Any, unit: str | None, at: DocumentPath, name: str, report: ProblemReport
) -> timedelta | None:
    try:
        return parse_duration(value, unit)
    except ValueError as error:
        report.add(at, name, f"cannot parse {quote(value)}", str(error))
        return None


def _read_service_levels(
    document: OpenDataContractStandard,
    table: str,
    places: dict[str, DocumentPath],
    report: ProblemReport,
) -> dict[str, Any]:
    """Return retention and freshness, and add their places."""
    found: dict[str, Any] = {}
    seen: dict[str, DocumentPath] = {}
    for index, entry in enumerate(document.slaProperties or ()):
        at: DocumentPath = ("slaProperties", index)
        name = entry.property or ""
        if name not in _SLA_PROPERTIES:
            hint = did_you_mean(name, _SLA_PROPERTIES)
            if hint:
                report.add(at, "slaProperties", f"unknown property {quote(name)}", hint)
            continue
        promise = "freshness" if name in _FRESHNESS else name
        if promise in seen:
            report.add(at, name, f"{promise} is defined twice")
            continue
        seen[promise] = at
        span = _parse_duration(entry.value, entry.unit, (*at, "value"), name, report)
        if promise == "retention":
            found["retention"] = span
            places["retention"] = at
        else:
            found["freshness"] = span
            found["freshness_column"] = _read_element(entry, document, table)
            places["freshness"] = (*at, "element")
    return found


def _read_element(
    entry: ServiceLevelAgreementProperty, document: OpenDataContractStandard, table: str
) -> str | None:
    element = entry.element or document.slaDefaultElement
    if element is None or element == table:
        return None
    return element.removeprefix(f"{table}.")
