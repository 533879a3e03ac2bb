"""Generates the reference of the Python API in docs/python.md from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from thermocline.telemetry import SilentProgress

SECTIONS: dict[str, tuple[str, ...]] = {
    "Open a lakehouse": ("open", "init", "demo", "connect"),
    "Lakehouse": ("Lakehouse",),
    "Tables and results": ("Table", "TableSnapshot", "Result", "ChangeSet"),
    "Maintenance": ("Maintenance", "MaintenancePlan", "MaintenanceReport", "TableHealth",
                    "TableDetails"),
    "A running server": ("Client",),
    "Models in Python": ("model", "changes"),
    "Reports": (
        "CheckReport", "DemoReport", "Finding", "HistoryEntry", "IngestReport", "IngestTarget",
        "Plan", "RollbackReport", "RunReport", "TableInfo",
    ),
}  # fmt: skip
"""The public objects in the order of the page. A test fails when `thermocline.api` has others."""


def render_api() -> str:
    """Return the reference in Markdown: each object's signature, docstring and public members."""
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        parts += [_render_object(name, find_object(name)) for name in names]
    return "\n\n".join(parts)


def find_object(name: str) -> Any:
    """Return a public object by the name that the page has it under."""
    import thermocline
    from thermocline import api, client
    from thermocline.api.maintenance import Maintenance
    from thermocline.api.table import RollbackReport
    from thermocline.lake.changeset import ChangeSet
    from thermocline.maintain.maintenance_plan import MaintenancePlan
    from thermocline.maintain.service import MaintenanceReport
    from thermocline.maintain.table_details import TableDetails
    from thermocline.maintain.table_health import TableHealth
    from thermocline.transform.model_decorator import changes, model

    others = {
        "ChangeSet": ChangeSet, "Client": client.Client, "RollbackReport": RollbackReport,
        "Maintenance": Maintenance, "MaintenancePlan": MaintenancePlan,
        "MaintenanceReport": MaintenanceReport, "TableHealth": TableHealth,
        "TableDetails": TableDetails,
        "changes": changes, "model": model,
    }  # fmt: skip
    for module in (thermocline, api):
        if name in module.__all__:
            return getattr(module, name)
    return others[name]


def _render_object(name: str, found: Any) -> str:
    if not inspect.isclass(found):
        return _render_function(f"{_import_path(name)}.{name}", found, heading="###")
    fields = [f"- `{field}: {annotation}`" for field, annotation in _public_fields(found)]
    lines = [f"### {name}", _docstring(found), *(["\n".join(fields)] if fields else [])]
    for member_name, member in _public_members(found):
        if isinstance(member, property | cached_property):
            lines.append(_render_property(member_name, member))
        else:
            lines.append(_render_function(member_name, member, heading="####"))
    return "\n\n".join(lines)


def _import_path(name: str) -> str:
    import thermocline

    return "thermocline" if name in thermocline.__all__ else "thermocline.transform"


def _public_fields(found: type) -> Iterator[tuple[str, str]]:
    for field, annotation in inspect.get_annotations(found).items():
        if not field.startswith("_"):
            yield field, str(annotation)


def _public_members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield properties and methods in the order of the source, those of our base classes too."""
    own: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        if base.__module__.startswith("thermocline"):
            own |= vars(base)
    for name, member in own.items():
        is_member = inspect.isfunction(member) or isinstance(member, property | cached_property)
        if is_member and not name.startswith("_"):
            yield name, member


def _render_property(name: str, member: property | cached_property[Any]) -> str:
    function = member.fget if isinstance(member, property) else member.func
    assert function is not None
    returned = inspect.signature(function).return_annotation
    return f"#### {name}\n\n`{name}: {returned}`\n\n{_docstring(function)}"


def _render_function(name: str, function: Callable[..., Any], heading: str) -> str:
    signature = inspect.signature(function)
    # As they stand in the source: annotations are texts, defaults as one would type them.
    parameters = [
        each.replace(annotation=_Verbatim(each.annotation), default=_shown_default(each.default))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    shown = inspect.Signature(parameters, return_annotation=_Verbatim(signature.return_annotation))
    short = name.rpartition(".")[2]
    return f"{heading} {short}\n\n```python\n{name}{shown}\n```\n\n{_docstring(function)}"


class _Verbatim:
    """A text that a signature shows without quotation marks."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _shown_default(default: object) -> object:
    if isinstance(default, SilentProgress):
        return _Verbatim("SILENT")
    return default


def _docstring(found: Any) -> str:
    text = inspect.getdoc(found)
    assert text, f"{found} has no docstring"
    return text
