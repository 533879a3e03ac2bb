"""The terms of a table: how it is written and ordered, how fresh and how long it is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from thermocline.contract.definition import Drift, Incremental, Sort, Updates, Write
from thermocline.contract.odcs.custom import Setting, read_settings
from thermocline.contract.odcs.durations import parse_duration
from thermocline.contract.problems import Report, Where, did_you_mean, shown

if TYPE_CHECKING:
    from open_data_contract_standard.model import (
        OpenDataContractStandard,
        SchemaObject,
        ServiceLevelAgreementProperty,
    )

_Choice = TypeVar("_Choice", bound=StrEnum)
_FRESHNESS = ("freshness", "latency")
_SERVICE = (*_FRESHNESS, "retention")


@dataclass
class Terms:
    """The settings of a table, and where each of them was written."""

    write: Write = Write.APPEND
    order_by: tuple[str, ...] = ()
    delete_when: str | None = None
    updates: Updates = Updates.COPY_ON_WRITE
    incremental: Incremental = Incremental.AUTO
    drift: Drift = Drift.REFUSE
    dropped: tuple[str, ...] = ()
    sort: tuple[Sort, ...] = ()
    hot: timedelta | None = None
    history: timedelta | None = None
    freshness: timedelta | None = None
    freshness_column: str | None = None
    retention: timedelta | None = None
    tags: tuple[str, ...] = ()
    readers: tuple[str, ...] | None = None
    places: dict[str, Where] = field(default_factory=dict)


def read_terms(
    document: OpenDataContractStandard, schema: SchemaObject, at: Where, report: Report
) -> Terms:
    """The table's terms, from the contract's custom and service-level properties."""
    settings = read_settings(document.customProperties, (), "customProperties", "table", report)
    inner = read_settings(schema.customProperties, at, "customProperties", "table", report)
    for name in settings.keys() & inner.keys():
        report.add(inner[name].at, name, "is set both for the contract and for its schema")
    settings |= inner
    tags = dict.fromkeys([*(document.tags or ()), *(schema.tags or ())])
    terms = Terms(tags=tuple(tags), places={name: s.at for name, s in settings.items()})
    terms.write = _choice(settings.get("write"), Write.APPEND, "write", report)
    terms.updates = _choice(settings.get("updates"), Updates.COPY_ON_WRITE, "updates", report)
    terms.incremental = _choice(
        settings.get("incremental"), Incremental.AUTO, "incremental", report
    )
    terms.drift = _choice(settings.get("drift"), Drift.REFUSE, "drift", report)
    terms.order_by = _texts(settings.get("orderBy"), "orderBy", report)
    terms.dropped = _texts(settings.get("dropped"), "dropped", report)
    terms.sort = _sort(settings.get("sortBy"), report)
    terms.delete_when = _condition(settings.get("deleteWhen"), report)
    terms.hot = _span(settings.get("hot"), "hot", report)
    terms.history = _span(settings.get("history"), "history", report)
    terms.readers = _readers(document, report)
    _read_service_levels(document, schema.name or "", terms, report)
    return terms


def _readers(document: OpenDataContractStandard, report: Report) -> tuple[str, ...] | None:
    """The roles whose access is to read, or is left out; None where no roles are named."""
    if document.roles is None:
        return None
    for index, entry in enumerate(document.roles):
        if not (entry.role or "").strip():
            report.add(("roles", index), "roles", "an entry names no role")
    return tuple(
        entry.role.strip()
        for entry in document.roles
        if entry.role and "read" in re.split(r"\W+", (entry.access or "read").lower())
    )


def _choice(setting: Setting | None, default: _Choice, name: str, report: Report) -> _Choice:
    if setting is None:
        return default
    values = [member.value for member in type(default)]
    if setting.value not in values:
        hint = did_you_mean(str(setting.value), values) or f"one of {', '.join(values)}"
        report.broken(setting.at, name, f"unknown value {shown(setting.value)}", hint)
        return default
    return type(default)(setting.value)


def _texts(setting: Setting | None, name: str, report: Report) -> tuple[str, ...]:
    if setting is None:
        return ()
    values = [setting.value] if isinstance(setting.value, str) else setting.value
    if not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
        report.add(setting.at, name, "must be a column or a list of columns")
        return ()
    stripped = [value.strip() for value in values]
    for value in sorted({value for value in stripped if stripped.count(value) > 1}):
        report.add(setting.at, name, f"{shown(value)} is there twice")
    return tuple(stripped)


def _sort(setting: Setting | None, report: Report) -> tuple[Sort, ...]:
    sort = []
    for text in _texts(setting, "sortBy", report):
        column, _, direction = text.partition(" ")
        direction = direction.strip().lower()
        if direction not in ("", "asc", "desc"):
            assert setting is not None
            hint = "write column, column asc or column desc"
            report.add(setting.at, "sortBy", f"cannot read {shown(text)}", hint)
            continue
        sort.append(Sort(column, direction == "desc"))
    return tuple(sort)


def _condition(setting: Setting | None, report: Report) -> str | None:
    if setting is None:
        return None
    if not isinstance(setting.value, str) or not setting.value.strip():
        hint = "write it as text, for example \"_op = 'd'\""
        report.add(setting.at, "deleteWhen", "must be a SQL condition", hint)
        return None
    return setting.value.strip()


def _span(setting: Setting | None, name: str, report: Report) -> timedelta | None:
    return _duration(setting.value, None, setting.at, name, report) if setting else None


def _duration(
    value: Any, unit: str | None, at: Where, name: str, report: Report
) -> timedelta | None:
    try:
        return parse_duration(value, unit)
    except ValueError as error:
        report.add(at, name, f"cannot read {shown(value)}", str(error))
        return None


def _read_service_levels(
    document: OpenDataContractStandard, table: str, terms: Terms, report: Report
) -> None:
    seen: dict[str, Where] = {}
    for index, entry in enumerate(document.slaProperties or ()):
        at: Where = ("slaProperties", index)
        name = entry.property or ""
        if name not in _SERVICE:
            hint = did_you_mean(name, _SERVICE)
            if hint:
                report.add(at, "slaProperties", f"unknown property {shown(name)}", hint)
            continue
        promise = "freshness" if name in _FRESHNESS else name
        if promise in seen:
            report.add(at, name, f"{promise} is promised twice")
            continue
        seen[promise] = at
        span = _duration(entry.value, entry.unit, (*at, "value"), name, report)
        if promise == "retention":
            terms.retention = span
            terms.places["retention"] = at
        else:
            terms.freshness = span
            terms.freshness_column = _element(entry, document, table)
            terms.places["freshness"] = (*at, "element")


def _element(
    entry: ServiceLevelAgreementProperty, document: OpenDataContractStandard, table: str
) -> str | None:
    element = entry.element or document.slaDefaultElement
    if element is None or element == table:
        return None
    return element.removeprefix(f"{table}.")


def settings_of(terms: Terms) -> Mapping[str, Any]:
    """The terms as keyword arguments of a Contract."""
    return {name: value for name, value in vars(terms).items() if name != "places"}
