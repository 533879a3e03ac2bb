"""Infer the types of a query's expressions, as DuckDB defines them.

sqlglot's type annotation is corrected where DuckDB 1.5 was found to differ. Only these are exact:
the family of a type, the scale of a decimal, and an upper bound of its digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from sqlglot import exp

from thermocline.contract import types as contract
from thermocline.contract.type_syntax import parse_type
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from sqlglot.optimizer.annotate_types import TypeAnnotator
    from sqlglot.schema import MappingSchema

T = exp.DType
Columns = Mapping[str, Mapping[str, str]]
"""Table → column → its type in the words of contracts."""

_PRIMITIVES = {
    "boolean": T.BOOLEAN, "int": T.INT, "long": T.BIGINT, "float": T.FLOAT, "double": T.DOUBLE,
    "date": T.DATE, "time": T.TIME, "timestamp": T.TIMESTAMPNTZ, "timestamptz": T.TIMESTAMPTZ,
    "string": T.TEXT, "uuid": T.UUID, "binary": T.VARBINARY,
}  # fmt: skip
_FAMILIES = {
    **dict.fromkeys((T.TINYINT, T.SMALLINT, T.INT, T.BIGINT), "integer"),
    **dict.fromkeys((T.TEXT, T.VARCHAR, T.CHAR), "text"),
    **dict.fromkeys((T.TIMESTAMP, T.TIMESTAMPNTZ), "timestamp"),
    T.BOOLEAN: "boolean", T.FLOAT: "real", T.DOUBLE: "double", T.DECIMAL: "decimal",
    T.DATE: "date", T.TIMESTAMPTZ: "timestamptz", T.ARRAY: "list", T.LIST: "list",
    T.STRUCT: "struct", T.MAP: "map", T.NULL: "null", T.INTERVAL: "interval",
}  # fmt: skip
NUMBERS = frozenset({"integer", "decimal", "double"})
TIMES = frozenset({"date", "timestamp", "timestamptz"})


def family(node: exp.Expr | None) -> str:
    """Return the type family of an expression, or `unknown`."""
    if node is None or isinstance(node, exp.Null):
        return "null"
    return _FAMILIES.get(node.type.this, "unknown") if node.type is not None else "unknown"


def matches_type(node: exp.Expr, word: str) -> bool:
    """Return whether an expression has a contract type, or differs from it only in width."""
    expected = with_type(exp.Null(), _parse_column_type(word))
    if node.type is None or node.type.this in {T.UNKNOWN, T.NULL}:
        return False
    if expected.type is not None and expected.type.this == T.DECIMAL:
        return (
            node.type.this == T.DECIMAL
            and scale(node) == (_precision_and_scale(expected) or (0, None))[1]
        )
    kinds = {
        _FAMILIES.get(each.type.this, each.type.this) for each in (node, expected) if each.type
    }
    return len(kinds) == 1


def scale(node: exp.Expr) -> int | None:
    """Return the scale of a decimal; 0 for an integer, None if unknown."""
    if family(node) == "integer":
        return 0
    sizes = _precision_and_scale(node)
    return sizes[1] if sizes else None


def max_digits(node: exp.Expr) -> int | None:
    """Return an upper bound of the digits of an integer or decimal, or None if unknown."""
    return sum(_count_digits(node)) if scale(node) is not None else None


def with_type(node: exp.Expr, kind: exp.DType | exp.DataType) -> exp.Expr:
    """Set the type of a node and return the node."""
    node.type = kind
    return node


def build_schema(columns: Columns) -> MappingSchema:
    """Return the tables' columns as a schema of the parser."""
    from sqlglot.schema import MappingSchema

    tables: dict[str, dict[str, dict[str, exp.DataType]]] = {}
    for table, found in columns.items():
        layer, _, name = table.partition(".")
        kinds = {column: _parse_column_type(word) for column, word in found.items()}
        tables.setdefault(layer, {})[name] = kinds
    return MappingSchema(cast("dict[str, object]", tables), dialect="duckdb")


def annotate(tree: exp.Query, known: MappingSchema, dialect: str = "duckdb") -> None:
    """Annotate each node of a qualified tree with its type, by DuckDB's or Trino's rules."""
    from sqlglot.dialects.duckdb import DuckDB
    from sqlglot.optimizer.annotate_types import annotate_types

    trinos = _TRINO_METADATA if dialect == "trino" else {}
    metadata = {**DuckDB.EXPRESSION_METADATA, **_DUCKDB_METADATA, **trinos}
    annotate_types(
        tree,
        schema=known,
        expression_metadata=cast("Any", metadata),
        dialect="duckdb",
    )


def build_empty_select(columns: Mapping[str, str]) -> exp.Select:
    """Return a query with a table's columns and no rows; it reads nothing."""
    results = []
    for name, word in columns.items():
        kind = _parse_column_type(word)
        if kind.this == T.UNKNOWN:
            kind = exp.DataType(this=T.VARBINARY if word.startswith("fixed") else T.TEXT)
        results.append(exp.alias_(exp.cast(exp.null(), kind), name, quoted=True))
    return exp.select(*results).where(exp.false())


def qualify_and_annotate(tree: exp.Query, columns: Columns) -> exp.Expr:
    """Qualify columns, expand stars and aliases, and annotate types on all nodes.

    Changes the tree in place. Raises SqlglotError for a name that cannot be resolved.
    """
    from sqlglot.optimizer.qualify import qualify

    known = build_schema(columns)
    found = qualify(tree, schema=known, dialect="duckdb", quote_identifiers=False,
                    validate_qualify_columns=False, isolate_tables=False)  # fmt: skip
    if isinstance(found, exp.Query):
        annotate(found, known)
    return found


def _parse_column_type(word: str) -> exp.DataType:
    try:
        return _to_sqlglot_type(parse_type(word))
    except BadInput:
        return exp.DataType(this=T.UNKNOWN)


def _to_sqlglot_type(kind: contract.Type) -> exp.DataType:
    match kind:
        case contract.Primitive(name):
            return exp.DataType(this=_PRIMITIVES.get(name, T.UNKNOWN))
        case contract.Decimal(precision, digits):
            return decimal_type(precision, digits)
        case contract.List(element):
            return exp.DataType(this=T.ARRAY, expressions=[_to_sqlglot_type(element)], nested=True)
        case contract.Struct(fields):
            members = [
                exp.ColumnDef(this=exp.to_identifier(each.name), kind=_to_sqlglot_type(each.type))
                for each in fields
            ]
            return exp.DataType(this=T.STRUCT, expressions=members, nested=True)
        case contract.Map(key, value):
            return exp.DataType(
                this=T.MAP,
                expressions=[_to_sqlglot_type(key), _to_sqlglot_type(value)],
                nested=True,
            )
    return exp.DataType(this=T.UNKNOWN)


def decimal_type(precision: int, digits: int) -> exp.DataType:
    """Return a decimal type."""
    sizes = [exp.DataTypeParam(this=exp.Literal.number(n)) for n in (precision, digits)]
    return exp.DataType(this=T.DECIMAL, expressions=sizes)


def _precision_and_scale(node: exp.Expr) -> tuple[int, int] | None:
    if isinstance(node, exp.Literal) and not node.is_string:
        whole, _, rest = str(node.this).partition(".")
        plain = (whole + rest).isdigit()
        return (len(whole) + len(rest), len(rest)) if plain else None
    if node.type is None or node.type.this != T.DECIMAL:
        return None
    found = [size.name for size in node.type.expressions]
    if len(found) != 2 or not all(each.isdigit() for each in found):
        return None
    return int(found[0]), int(found[1])


def _count_digits(node: exp.Expr) -> tuple[int, int]:
    """Return the maximum digits before the decimal point, and those after it."""
    sizes = _precision_and_scale(node)
    if sizes is not None:
        return sizes[0] - sizes[1], sizes[1]
    return {T.TINYINT: 3, T.SMALLINT: 5, T.INT: 10}.get(node.type.this, 19) if node.type else 19, 0


def _capped_decimal(before: int, after: int) -> exp.DataType:
    """Return a decimal type with the digits capped at the maximum precision."""
    return decimal_type(min(before + after, 38), min(after, 38))


# Corrections of the parser's types for DuckDB -----------------------------------------------------


def _set_type(self: TypeAnnotator, node: exp.Expr, kind: Any) -> exp.Expr:
    self._set_type(node, kind)
    return node


def _annotate_arithmetic(self: TypeAnnotator, node: exp.Binary) -> exp.Expr:
    """Type a sum, difference or product of numbers, or a time plus or minus an interval."""
    left, right = node.left, node.right
    families = {family(left), family(right)}
    if families == {"decimal"} or families == {"decimal", "integer"}:
        scales = scale(left), scale(right)
        if None in scales:
            return _set_type(self, node, T.UNKNOWN)
        (before, after), (above, below) = _count_digits(left), _count_digits(right)
        if isinstance(node, exp.Mul):
            kind = _capped_decimal(before + above, after + below)
        else:
            kind = _capped_decimal(max(before, above) + 1, max(after, below))
        return _set_type(self, node, kind)
    if families <= NUMBERS and "double" in families:
        return _set_type(self, node, T.DOUBLE)
    if families == {"integer"}:
        wide = T.BIGINT in {left.type and left.type.this, right.type and right.type.this}
        return _set_type(self, node, T.BIGINT if wide else T.INT)
    if families == {"real"}:
        return _set_type(self, node, T.FLOAT)
    return _set_type(self, node, _time_arithmetic_type(node, family(left), family(right)))


def _time_arithmetic_type(node: exp.Binary, left: str, right: str) -> Any:
    if isinstance(node, exp.Mul):
        return T.INTERVAL if {left, right} == {"interval", "integer"} else T.UNKNOWN
    if left == "date" and right == "integer":
        return T.DATE
    if left == "date" and right == "date" and isinstance(node, exp.Sub):
        return T.BIGINT
    if right == "interval" or (left == "interval" and isinstance(node, exp.Add)):
        time = left if right == "interval" else right
        # A date and an interval give a timestamp.
        return {"date": T.TIMESTAMPNTZ, "timestamp": T.TIMESTAMPNTZ, "timestamptz": T.TIMESTAMPTZ,
                "interval": T.INTERVAL}.get(time, T.UNKNOWN)  # fmt: skip
    return T.UNKNOWN


def _annotate_truncation(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    zoned = family(node.this) == "timestamptz"
    known = family(node.this) in TIMES
    return _set_type(
        self, node, (T.TIMESTAMPTZ if zoned else T.TIMESTAMPNTZ) if known else T.UNKNOWN
    )


def _annotate_floor(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    kinds = {"integer": T.DOUBLE, "double": T.DOUBLE, "decimal": decimal_type(38, 0)}
    return _set_type(self, node, kinds.get(family(node.this), T.UNKNOWN))


def _annotate_round(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    if family(node.this) != "decimal":
        return _set_type(self, node, node.this.type or T.UNKNOWN)
    digits = node.args.get("decimals")
    if digits is not None and not (isinstance(digits, exp.Literal) and digits.is_int):
        return _set_type(self, node, T.UNKNOWN)
    before, _ = _count_digits(node.this)
    return _set_type(
        self, node, _capped_decimal(before + 1, int(digits.name) if digits is not None else 0)
    )


def _annotate_sum(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    match family(of):
        case "integer" | "boolean":
            return _set_type(self, node, T.BIGINT)  # wider in DuckDB, but returned as this
        case "decimal":
            digits = scale(of)
            return _set_type(self, node, T.UNKNOWN if digits is None else decimal_type(38, digits))
        case "double" | "real":
            return _set_type(self, node, T.DOUBLE)
    return _set_type(self, node, T.UNKNOWN)


def _annotate_literal(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    """Type a number: with a decimal point it is a decimal in all engines, with an e a double."""
    text = node.name
    if node.args.get("is_string"):
        return _set_type(self, node, T.TEXT)
    if "e" in text.lower():
        return _set_type(self, node, T.DOUBLE)
    if "." in text:
        whole, _, rest = text.partition(".")
        return _set_type(self, node, decimal_type(len(whole) + len(rest), len(rest)))
    return _set_type(self, node, T.INT if int(text) < 2**31 else T.BIGINT)


def _annotate_common_type(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    """Type several values: the widest number type, otherwise their common type."""
    if isinstance(node, exp.Case):
        values = [*(each.args["true"] for each in node.args["ifs"]), node.args.get("default")]
    elif isinstance(node, exp.If):
        values = [node.args.get("true"), node.args.get("false")]
    else:
        values = [node.this, *node.expressions]
    found = [each for each in values if each is not None and family(each) != "null"]
    families = {family(each) for each in found}
    if families == {"integer"}:
        wide = any(each.type is not None and each.type.this == T.BIGINT for each in found)
        return _set_type(self, node, T.BIGINT if wide else T.INT)
    if families and families <= NUMBERS:
        if "double" in families:
            return _set_type(self, node, T.DOUBLE)
        if any(scale(each) is None for each in found):
            return _set_type(self, node, T.UNKNOWN)
        sizes = [_count_digits(each) for each in found]
        longest = _capped_decimal(
            max(before for before, _ in sizes), max(after for _, after in sizes)
        )
        return _set_type(self, node, longest)
    return _set_type(self, node, found[0].type if len(families) == 1 else T.UNKNOWN)


def _annotate_element(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    inner = node.this.type.expressions if family(node.this) == "list" else []
    return _set_type(self, node, inner[0] if len(inner) == 1 else T.UNKNOWN)


def _annotate_array_agg(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    of = node.this.this if isinstance(node.this, exp.Order) else node.this
    if of.type is None:
        return _set_type(self, node, T.UNKNOWN)
    return _set_type(
        self, node, exp.DataType(this=T.ARRAY, expressions=[of.type.copy()], nested=True)
    )


def _annotate_argument_type(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    return _set_type(self, node, node.this.type or T.UNKNOWN)


def _annotate_extract(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    return _set_type(self, node, T.DOUBLE if node.name.upper() == "EPOCH" else T.BIGINT)


def _annotate_anonymous(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    """Keep the assigned type of a function that the parser does not know."""
    counts = node.name.lower() == "strlen"
    return _set_type(self, node, T.BIGINT if counts else node.type or T.UNKNOWN)


def _returns(kind: exp.DType) -> dict[str, Any]:
    return {"returns": kind}


def _annotated_by(annotator: Callable[..., exp.Expr]) -> dict[str, Any]:
    return {"annotator": annotator}


_DUCKDB_METADATA: dict[type[exp.Expr], dict[str, Any]] = {
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _annotated_by(_annotate_arithmetic)),
    **dict.fromkeys((exp.DateTrunc, exp.TimestampTrunc), _annotated_by(_annotate_truncation)),
    **dict.fromkeys((exp.Floor, exp.Ceil), _annotated_by(_annotate_floor)),
    **dict.fromkeys((exp.Abs, exp.Neg, exp.Paren, exp.Mod, exp.IntDiv),
                    _annotated_by(_annotate_argument_type)),
    **dict.fromkeys((exp.Min, exp.Max, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue),
                    _annotated_by(_annotate_argument_type)),
    **dict.fromkeys((exp.Div, exp.Avg, exp.Median, exp.Sqrt, exp.Exp, exp.Ln, exp.Pow,
                     exp.TimeToUnix, exp.PercentRank, exp.CumeDist, exp.PercentileCont),
                    _returns(T.DOUBLE)),
    **dict.fromkeys((exp.Count, exp.CountIf, exp.DateDiff, exp.Grouping, exp.RowNumber, exp.Rank,
                     exp.DenseRank, exp.Ntile, exp.Week), _returns(T.BIGINT)),
    **dict.fromkeys((exp.Substring, exp.Left, exp.Right, exp.Lower, exp.Upper, exp.Trim, exp.MD5,
                     exp.Replace, exp.SplitPart, exp.DPipe, exp.Concat, exp.JSONExtractScalar,
                     exp.RegexpReplace, exp.GroupConcat), _returns(T.TEXT)),
    **dict.fromkeys((exp.Contains, exp.EndsWith), _returns(T.BOOLEAN)),
    **dict.fromkeys((exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least),
                    _annotated_by(_annotate_common_type)),
    exp.Nullif: _annotated_by(_annotate_argument_type),
    exp.Anonymous: _annotated_by(_annotate_anonymous),
    exp.Literal: _annotated_by(_annotate_literal),
    exp.Bracket: _annotated_by(_annotate_element),
    exp.Round: _annotated_by(_annotate_round),
    exp.Sum: _annotated_by(_annotate_sum),
    exp.Extract: _annotated_by(_annotate_extract),
}  # fmt: skip


# Where Trino's types differ from DuckDB's --------------------------------------------------------


def _annotate_trino_division(self: TypeAnnotator, node: exp.Binary) -> exp.Expr:
    families = {family(node.left), family(node.right)}
    if families == {"integer"}:
        return _set_type(self, node, T.BIGINT)
    if not families <= NUMBERS or "double" in families:
        return _set_type(self, node, T.DOUBLE if families <= NUMBERS else T.UNKNOWN)
    scales = scale(node.left), scale(node.right)
    known = None not in scales
    digits = max(each or 0 for each in scales)
    return _set_type(self, node, decimal_type(38, digits) if known else T.UNKNOWN)


def _annotate_trino_average(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    return _set_type(self, node, of.type if family(of) == "decimal" and of.type else T.DOUBLE)


def _annotate_trino_addition(self: TypeAnnotator, node: exp.Binary) -> exp.Expr:
    if {family(node.left), family(node.right)} == {"date", "interval"}:
        return _set_type(self, node, T.DATE)
    if family(node.left) in TIMES and family(node.left) == family(node.right):
        return _set_type(self, node, T.INTERVAL)
    return _annotate_arithmetic(self, node)


def _annotate_trino_floor(self: TypeAnnotator, node: exp.Expr) -> exp.Expr:
    return (
        _annotate_argument_type(self, node)
        if family(node.this) == "integer"
        else _annotate_floor(self, node)
    )


_TRINO_METADATA: dict[type[exp.Expr], dict[str, Any]] = {
    **dict.fromkeys((exp.Add, exp.Sub), _annotated_by(_annotate_trino_addition)),
    **dict.fromkeys((exp.Floor, exp.Ceil), _annotated_by(_annotate_trino_floor)),
    **dict.fromkeys(
        (exp.DateTrunc, exp.TimestampTrunc, exp.Round, exp.DateAdd),
        _annotated_by(_annotate_argument_type),
    ),
    exp.Div: _annotated_by(_annotate_trino_division),
    exp.Avg: _annotated_by(_annotate_trino_average),
    exp.Date: _returns(T.DATE),
    exp.ArrayAgg: _annotated_by(_annotate_array_agg),
    **dict.fromkeys((exp.RegexpExtract, exp.ConcatWs), _returns(T.TEXT)),
    exp.ApproxDistinct: _returns(T.BIGINT),
    exp.ApproxQuantile: _annotated_by(_annotate_argument_type),
    exp.UnixToTime: _returns(T.TIMESTAMPTZ),
}
