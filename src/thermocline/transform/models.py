"""Models: load the file that computes each table, and find the tables it reads."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract
from thermocline.engine.sql_errors import locate_parse_error
from thermocline.errors import BadInput, ContractError
from thermocline.transform.model_decorator import Read, ReadMode

if TYPE_CHECKING:
    from sqlglot import exp

_READ_MODES = {mode.value: mode for mode in ReadMode}
_ENGINES = ("spark", "polars")
DIALECT = "duckdb"
"""The dialect of all SQL models."""


@dataclass(frozen=True)
class Model:
    """One model. `reads` maps the name that the model uses to the table and how it is read."""

    table: str
    path: Path
    reads: Mapping[str, Read]
    fingerprint: str
    contract: Contract
    tags: tuple[str, ...] = ()
    text: str = field(default="", repr=False)
    engine: str = ""
    """The frames of a Python model: spark or polars."""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The columns of each table it reads, with their types, from their contracts."""

    @property
    def is_sql(self) -> bool:
        """Whether the model is a SELECT rather than a function."""
        return self.path.suffix == ".sql"

    @property
    def sources(self) -> list[str]:
        """The tables it reads, each once."""
        return list(dict.fromkeys(read.table for read in self.reads.values()))

    def read_mode(self, table: str) -> ReadMode | None:
        """Return how the model reads a table; None if it reads the table in several modes."""
        found = {read.mode for read in self.reads.values() if read.table == table}
        return found.pop() if len(found) == 1 else None

    def query(self) -> exp.Query:
        """Parse the SELECT of a SQL model; each call returns a new copy."""
        return parse_query(self.text, self.path)

    def function(self) -> Callable[..., Any]:
        """Import the function of a Python model."""
        return _import_function(self)


@dataclass(frozen=True)
class ModelProblem:
    """A problem in a model file."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"models/{self.path.parent.name}/{self.path.name}:{self.line}  {self.what}"


def load_models(folder: Path, contracts: Mapping[str, Contract]) -> dict[str, Model]:
    """Load all models of a project by table. All problems are reported together."""
    models: dict[str, Model] = {}
    problems: list[ModelProblem] = []
    for path in sorted([*folder.glob("*/*.sql"), *folder.glob("*/*.py")]):
        if path.name.startswith("_"):
            continue
        table = f"{path.parent.name}.{path.stem}"
        try:
            if table in models:
                raise _ModelFileError(1, f"{table} has two models: {models[table].path.name} too")
            if table not in contracts:
                raise _ModelFileError(
                    1, f"there is no contract contracts/{table.replace('.', '/')}.odcs.yaml"
                )
            models[table] = _add_columns(_load_model(table, path, contracts[table]), contracts)
        except _ModelFileError as error:
            problems.append(ModelProblem(path, error.line, error.what))
    if problems:
        raise ContractError(problems, "Fix the models and run again. Nothing was written.")
    return models


class _ModelFileError(Exception):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def _load_model(table: str, path: Path, contract: Contract) -> Model:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _ModelFileError(1, f"cannot be read: {error}") from error
    tags: tuple[str, ...] = ()
    engine = ""
    if path.suffix == ".sql":
        reads = _parse_sql_reads(text, path)
    else:
        reads, tags, engine = _parse_python_reads(text)
    if not reads:
        raise _ModelFileError(1, "it reads no table")
    if any(read.table == table for read in reads.values()):
        raise _ModelFileError(1, "a model cannot read the table it writes")
    tags = (*tags, *contract.tags)
    return Model(
        table, path, reads, _compute_fingerprint(text, contract), contract, tags, text, engine
    )


def _add_columns(model: Model, contracts: Mapping[str, Contract]) -> Model:
    for source in model.sources:
        if source not in contracts:
            raise _ModelFileError(1, f"it reads {source}, which has no contract")
    columns = {
        source: {column.name: str(column.type) for column in contracts[source].table_columns}
        for source in model.sources
    }
    return replace(model, columns=columns)


def _compute_fingerprint(text: str, contract: Contract) -> str:
    """Hash the model's text and its contract, so that a change of either recomputes the table."""
    columns = [f"{column.name} {column.type}" for column in contract.table_columns]
    parts = [text, *columns, *contract.key, *contract.order_by, contract.write]
    parts += [contract.delete_when or "", *map(str, contract.partition)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def parse_query(text: str, path: Path | None = None) -> exp.Query:
    """Parse one SELECT in the models' dialect."""
    import sqlglot
    from sqlglot import errors, exp

    try:
        statements = [s for s in sqlglot.parse(text, dialect=DIALECT) if s is not None]
    except (errors.SqlglotError, RecursionError) as error:
        line, what = locate_parse_error(error)
        raise _ModelFileError(line or 1, f"SQL: {what}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise _ModelFileError(1, "a SQL model is exactly one SELECT")
    return statements[0]


def find_table_references(query: exp.Query) -> list[exp.Table]:
    """Return the references to stored tables in a query, without CTE names."""
    from sqlglot import exp

    names = {cte.alias_or_name for cte in query.find_all(exp.CTE)}
    return [
        found
        for found in query.find_all(exp.Table)
        if isinstance(found.this, exp.Identifier) and (found.db or found.name not in names)
    ]


def _parse_sql_reads(text: str, path: Path) -> dict[str, Read]:
    reads: dict[str, Read] = {}
    for reference in find_table_references(parse_query(text, path)):
        if not reference.db or reference.catalog:
            raise _ModelFileError(1, f"write the table {reference.sql(DIALECT)} as layer.name")
        name = f"{reference.db}.{reference.name}"
        reads[name] = Read(name)
    return reads


def _parse_python_reads(text: str) -> tuple[dict[str, Read], tuple[str, ...], str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise _ModelFileError(error.lineno or 1, f"Python: {error.msg}") from error
    found = [
        (node, call)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and _callee_name(call.func) == "model"
    ]
    if len(found) != 1:
        raise _ModelFileError(
            1, "a Python model is exactly one function marked with @model(reads=…)"
        )
    node, call = found[0]
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    reads = arguments.get("reads") or (call.args[0] if call.args else None)
    if not isinstance(reads, ast.Dict):
        raise _ModelFileError(
            call.lineno, "reads must be written out as {parameter: table(…) | changes(…)}"
        )
    reads_by_parameter = {}
    for key, value in zip(reads.keys, reads.values, strict=True):
        reads_by_parameter[_parse_text(key)] = _parse_read(value)
    parameters = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    if parameters != set(reads_by_parameter):
        raise _ModelFileError(
            node.lineno, f"its parameters and its reads differ: {sorted(reads_by_parameter)}"
        )
    tags = arguments.get("tags")
    engine = _parse_text(arguments["engine"]) if "engine" in arguments else "spark"
    if engine not in _ENGINES:
        raise _ModelFileError(call.lineno, f"engine must be one of {', '.join(_ENGINES)}")
    return reads_by_parameter, tuple(ast.literal_eval(tags)) if tags is not None else (), engine


def _parse_read(node: ast.expr) -> Read:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Read(node.value)
    mode = _READ_MODES.get(_callee_name(node.func)) if isinstance(node, ast.Call) else None
    if mode is None or not isinstance(node, ast.Call) or len(node.args) != 1:
        raise _ModelFileError(
            node.lineno, 'write a read as table("…"), changes("…") or lookup("…")'
        )
    return Read(_parse_text(node.args[0]), mode)


def _callee_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parse_text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise _ModelFileError(getattr(node, "lineno", 1), "names in reads must be written out as text")


def _import_function(model: Model) -> Callable[..., Any]:
    name = f"thermocline_models_{model.table.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, model.path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{model.path.name} cannot be imported.", "Check the file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for value in vars(module).values():
        if callable(value) and hasattr(value, "__thermocline_reads__"):
            function: Callable[..., Any] = value
            return function
    raise BadInput(f"{model.path.name} marks no function with @model.", "Mark one.")
