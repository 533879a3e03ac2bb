"""Check that a document has the structure of the Open Data Contract Standard.

The standard's own pydantic models validate the types of values. They ignore unknown keys, which
would hide typos, so keys are compared with the models here.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote

if TYPE_CHECKING:
    from open_data_contract_standard.model import OpenDataContractStandard
    from pydantic import BaseModel

_EXPECTED = {
    "string": "text", "str": "text", "bool": "true or false", "int": "a whole number",
    "float": "a number", "list": "a list", "dict": "a mapping", "model": "a mapping",
    "too": "exactly two numbers",
}  # fmt: skip
_REQUIRED_KEYS = ("apiVersion", "kind", "id", "version", "schema")


def read_structure(data: Any, report: ProblemReport) -> OpenDataContractStandard | None:
    """Return the document as the standard's model, without the parts that were reported.

    Returns None if nothing usable is left.
    """
    from open_data_contract_standard.model import OpenDataContractStandard

    if not isinstance(data, dict):
        report.add_broken(
            (), "", "a contract is a mapping of apiVersion, kind, id, version, schema"
        )
        return None
    _refuse_unknown_keys(OpenDataContractStandard, data, (), report)
    _check_header(data, report)
    return _validate_model(OpenDataContractStandard, data, report)


def _check_header(data: dict[str, Any], report: ProblemReport) -> None:
    for key in _REQUIRED_KEYS:
        if data.get(key) is None:
            report.add_broken((key,), key, "is missing", "the standard requires it")
    api, kind = data.get("apiVersion"), data.get("kind")
    if api is not None and not str(api).startswith("v3."):
        hint = "write apiVersion: v3.1.0"
        report.add_broken(("apiVersion",), "apiVersion", f"{quote(api)} is not version 3", hint)
    if kind is not None and kind != "DataContract":
        report.add_broken(
            ("kind",), "kind", f"{quote(kind)} is not a contract", "write DataContract"
        )


def _validate_model(
    model: type[OpenDataContractStandard], data: dict[str, Any], report: ProblemReport
) -> OpenDataContractStandard | None:
    from pydantic import ValidationError

    # Invalid parts are reported and removed until the rest is valid, so that one wrong value does
    # not hide other problems. Every round removes something; the bound is a safety net.
    for _ in range(100):
        try:
            return model.model_validate(data)
        except ValidationError as error:
            seen: set[DocumentPath] = set()
            for flaw in error.errors(include_url=False):
                at = _existing_path(data, flaw["loc"])
                if at in seen:
                    continue
                seen.add(at)
                if flaw["type"] != "extra_forbidden":
                    _report_value(data, at, flaw["type"], report)
            if () in seen:
                return None
            for at in sorted(seen, key=len, reverse=True):
                if _existing_path(data, at) == at:
                    _remove_value(data, at)
    return None


def _report_value(data: Any, at: DocumentPath, kind: str, report: ProblemReport) -> None:
    value = _value_at(data, at)
    expected = _EXPECTED.get(kind.split("_")[0], "of another type")
    hint = ""
    if expected == "text" and isinstance(value, int | float):
        hint = f'put it in quotes: "{value}"'
    report.add_broken(
        at, _describe_place(data, at), f"must be {expected}, not {_describe_value(value)}", hint
    )


def _describe_value(value: Any) -> str:
    match value:
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
    return quote(value)


def _existing_path(data: Any, where: tuple[str | int, ...]) -> DocumentPath:
    """Return the part of a pydantic location that is in the document, without union members."""
    at: list[str | int] = []
    for step in where:
        inside = data if isinstance(data, dict) else range(len(data)) if _is_list(data) else ()
        if step not in inside:
            break
        data = data[step]
        at.append(step)
    return tuple(at)


def _is_list(data: Any) -> bool:
    return isinstance(data, list)


def _value_at(data: Any, at: DocumentPath) -> Any:
    for step in at:
        data = data[step]
    return data


def _remove_value(data: Any, at: DocumentPath) -> None:
    parent = _value_at(data, at[:-1])
    step = at[-1]
    if isinstance(parent, dict):
        del parent[step]
    else:
        # Indexes must still match the document's lines, so an empty mapping replaces the item; if
        # that is invalid too, the next round removes the whole list.
        if parent[step] == {}:
            _remove_value(data, at[:-1])
        else:
            parent[step] = {}


def _describe_place(data: Any, at: DocumentPath) -> str:
    """Return the display name of a place: the nearest column above it, and the key."""
    names = []
    for depth in range(3, len(at)):
        value = _value_at(data, at[:depth])
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            names.append(value["name"])
    steps = [step for step in at if isinstance(step, str)]
    last = f"{steps[-1]}[{at[-1]}]" if isinstance(at[-1], int) else steps[-1]
    return f"{names[-1]}.{last}" if names else last


def _refuse_unknown_keys(
    model: type[BaseModel], root: dict[str, Any], at: DocumentPath, report: ProblemReport
) -> None:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in _value_at(root, at).items():
        below = (*at, key)
        if key not in fields:
            report.add_broken(
                below, _describe_place(root, below), "unknown key", did_you_mean(key, [*fields])
            )
        elif isinstance(value, dict):
            inner = _inner_model(fields[key].annotation, in_list=False)
            if inner is not None:
                _refuse_unknown_keys(inner, root, below, report)
        elif isinstance(value, list):
            inner = _inner_model(fields[key].annotation, in_list=True)
            for index, item in enumerate(value):
                if inner is not None and isinstance(item, dict):
                    _refuse_unknown_keys(inner, root, (*below, index), report)


def _inner_model(annotation: Any, in_list: bool) -> type[BaseModel] | None:
    """Return the model of a field, directly or as the items of a list."""
    from pydantic import BaseModel

    origin = typing.get_origin(annotation)
    if origin is None:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return annotation if is_model and not in_list else None
    if origin is list:
        return _inner_model(typing.get_args(annotation)[0], in_list=False) if in_list else None
    if origin is dict:
        return None
    inner = (_inner_model(part, in_list) for part in typing.get_args(annotation))
    return next((model for model in inner if model is not None), None)
