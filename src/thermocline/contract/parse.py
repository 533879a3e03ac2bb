"""Parse ODCS v3 contract files into `Contract` values, reporting all problems together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.contract.identifiers import MAX_TABLE_NAME, check_name
from thermocline.contract.odcs.columns import read_layout
from thermocline.contract.odcs.quality import read_rules
from thermocline.contract.odcs.semantics import check_references, check_semantics
from thermocline.contract.odcs.structure import read_structure
from thermocline.contract.odcs.table_settings import read_table_settings
from thermocline.contract.problems import (
    DocumentPath,
    Problem,
    ProblemReport,
    build_contract_error,
    display_path,
    quote,
)
from thermocline.errors import NotFound

if TYPE_CHECKING:
    from open_data_contract_standard.model import OpenDataContractStandard, SchemaObject

    from thermocline.contract.odcs.yaml_lines import YamlDocument

SUFFIXES = (".odcs.yaml", ".odcs.yml")
_SCHEMA: DocumentPath = ("schema", 0)


def load_contract(path: Path | str) -> Contract:
    """Return the contract in a file `<layer>/<table>.odcs.yaml`.

    Raises ContractError with all problems of the file, each with its line. References to other
    tables are checked by `load_contracts`, which knows them.
    """
    contract, problems = _read_file(Path(path))
    if contract is None or problems:
        raise build_contract_error(problems)
    return contract


def load_contracts(folder: Path | str) -> dict[str, Contract]:
    """Return all contracts below a folder `contracts/`, by table ("layer.name"), sorted.

    Raises ContractError with all problems of all files. A missing folder has no contracts.
    """
    problems: list[Problem] = []
    contracts: dict[str, Contract] = {}
    invalid: set[str] = set()
    files: dict[str, str] = {}
    for path in _find_files(Path(folder), problems):
        contract, found = _read_file(path)
        problems += found
        table = contract.table if contract else f"{path.parent.name}.{_stem(path)}"
        if found:
            invalid.add(table)
        if contract is not None:
            contracts[table] = contract
        twin = files.setdefault(table.lower(), display_path(path))
        if twin != display_path(path):
            what, hint = f"{table} has two contracts", f"the other is {twin}"
            problems.append(Problem(display_path(path), 1, "", what, hint))
    for contract in contracts.values():
        assert contract.path is not None
        report = ProblemReport(display_path(contract.path), _line_of_rule)
        check_references(contract, contracts.values(), invalid, report)
        problems += report.problems
    if problems:
        raise build_contract_error(problems)
    return dict(sorted(contracts.items()))


def _line_of_rule(at: DocumentPath) -> int:
    return int(at[1])


def _find_files(folder: Path, problems: list[Problem]) -> list[Path]:
    """Return the contract files; a YAML file that would be ignored is a problem."""
    found = []
    for path in sorted(folder.rglob("*.y*ml")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or not path.is_file():
            continue
        place = display_path(path)
        if not path.name.endswith(SUFFIXES):
            hint = f"name it {path.stem}.odcs.yaml, or keep it elsewhere"
            problems.append(Problem(place, 0, "", "is not read as a contract", hint))
        elif len(inside.parts) != 2:
            hint = "put it into a folder named after its layer, such as contracts/silver/"
            problems.append(Problem(place, 0, "", "belongs to no layer", hint))
        else:
            found.append(path)
    return found


def _read_file(path: Path) -> tuple[Contract | None, list[Problem]]:
    # Imported here: code that only uses contract values needs no YAML library.
    from thermocline.contract.odcs.yaml_lines import MAX_BYTES, read_document

    document = read_document(_read_bytes(path, MAX_BYTES + 1))
    report = ProblemReport(display_path(path), document.line)
    for flaw in document.problems:
        report.problems.append(Problem(report.path, flaw.line, "", flaw.what, flaw.hint))
    if document.root is None:
        return None, report.problems
    structure = read_structure(document.data, report)
    contract = None if structure is None else _build_contract(structure, path, document, report)
    return contract, report.problems


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        raise NotFound(f"There is no contract at {path}.", "Check the path.") from None
    except OSError as error:
        cause = f"{path} cannot be read: {error.strerror}."
        raise NotFound(cause, "Check the path and its permissions.") from None


def _build_contract(
    structure: OpenDataContractStandard, path: Path, document: YamlDocument, report: ProblemReport
) -> Contract | None:
    schemas = structure.schema_ or []
    if len(schemas) != 1:
        what = f"has {len(schemas)} tables" if schemas else "has no table"
        report.add_missing(("schema",), "schema", what, "a contract file describes exactly one")
        if not schemas:
            return None
    schema = schemas[0]
    layer, name = path.absolute().parent.name, _read_table_name(schema, path, report)
    _check_layer(layer, report)
    layout = read_layout(schema, _SCHEMA, report)
    settings = read_table_settings(structure, schema, _SCHEMA, report)
    contract = Contract(
        table=f"{layer}.{name}",
        columns=tuple(layout.columns),
        path=path,
        id=structure.id or "",
        version=structure.version or "",
        status=structure.status or "active",
        description=_read_description(structure, schema),
        key=layout.key,
        partition=layout.partition,
        line=document.line(_SCHEMA),
        **settings.arguments,
    )
    rules = read_rules(schema, _SCHEMA, layer, contract.table_columns, report)
    check_semantics(contract, layout.places, settings.places, report)
    return replace(contract, rules=rules)


def _read_table_name(schema: SchemaObject, path: Path, report: ProblemReport) -> str:
    """Return the table's name, which the schema and the file name must share."""
    stem = _stem(path)
    at = (*_SCHEMA, "name")
    if schema.name is None:
        report.add_missing(_SCHEMA, "schema", "the table has no name", f"write name: {stem}")
        return stem
    flaw = check_name(schema.name, MAX_TABLE_NAME)
    if flaw:
        report.add_broken(at, "schema", *flaw)
        return stem
    if schema.name != stem:
        what = f"the table is {quote(schema.name)} but the file is {quote(path.name)}"
        report.add(at, "schema", what, f"name the file {schema.name}.odcs.yaml")
    if schema.physicalName not in (None, schema.name):
        hint = "use the same name for both"
        report.add((*_SCHEMA, "physicalName"), "schema", "physicalName differs from name", hint)
    return schema.name


def _stem(path: Path) -> str:
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
    return path.name.removesuffix(suffix)


def _check_layer(layer: str, report: ProblemReport) -> None:
    flaw = check_name(layer, MAX_TABLE_NAME)
    if flaw:
        report.add((), "layer", flaw[0], f"its folder's name: {flaw[1]}")


def _read_description(structure: OpenDataContractStandard, schema: SchemaObject) -> str:
    general = structure.description
    texts = (schema.description, general and general.purpose, general and general.usage)
    return next((text.strip() for text in texts if text), "")
