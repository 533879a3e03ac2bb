"""Parameters of a prepared statement: constants that replace its question marks.

They are inserted into the parsed tree. A parameter never becomes text of the statement.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from thermocline.serve.trino import statement_parser
from thermocline.serve.trino.error_codes import TrinoError

if TYPE_CHECKING:
    from sqlglot import exp

_CONSTANT_NODES = frozenset(
    {
        *("Literal", "Null", "Boolean", "Neg", "Paren", "Cast", "DataType", "DataTypeParam"),
        *("Array", "Struct", "Tuple", "Map", "VarMap", "ToMap", "HexString"),
        *("Interval", "IntervalSpan", "Var"),
    }
)
"""Nodes that a parameter may consist of: nothing that reads tables or computes."""
_CONSTANT_FUNCTIONS = frozenset({"row", "infinity", "nan"})


def parse_parameters(text: str) -> list[exp.Expr]:
    """Parse the constants after USING, which are separated by commas."""
    from sqlglot import exp

    # Parsed as the only part of a SELECT, it must be a list of expressions.
    sql = f"SELECT {text}"
    tree = statement_parser.parse_query(statement_parser.tokenize(sql), sql)
    more = [name for name, part in tree.args.items() if part and name != "expressions"]
    if type(tree) is not exp.Select or more:
        raise _not_constant_error()
    for node in tree.find_all(exp.Expr):
        if node is not tree and not _is_constant(node):
            raise _not_constant_error()
    return [_keep_decimal_scale(each) for each in tree.expressions]


def count_parameters(sql: str) -> int:
    """Return how many parameters a statement has."""
    return sum(token.token_type.name == "PLACEHOLDER" for token in statement_parser.tokenize(sql))


def bind_parameters(sql: str, values: list[exp.Expr]) -> exp.Query:
    """Parse a query and replace its question marks, from left to right, by constants."""
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token, TokenType

    # The tree is not in the order of the text, so each mark gets a number before parsing.
    mark = secrets.token_hex(8)
    found = statement_parser.tokenize(sql)
    count = 0
    for index, token in enumerate(found):
        if token.token_type is TokenType.PLACEHOLDER:
            found[index] = Token(
                TokenType.STRING, f"{mark}{count}", token.line, token.col, token.start, token.end
            )
            count += 1
    if count != len(values):
        raise TrinoError(
            "INVALID_PARAMETER_USAGE",
            f"Incorrect number of parameters: expected {count} but found {len(values)}.",
            "Give one value for each question mark.",
        )
    tree = statement_parser.parse_query(found, sql)
    left = count
    for node in list(tree.find_all(exp.Literal)):
        if node.is_string and node.name.startswith(mark):
            node.replace(values[int(node.name[len(mark) :])].copy())
            left -= 1
    if left or tree.find(exp.Placeholder):
        raise TrinoError(
            "INVALID_PARAMETER_USAGE",
            "A parameter is used where no value is possible.",
            "Use parameters for values only, not for names.",
        )
    return tree


def _is_constant(node: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _CONSTANT_FUNCTIONS
    return type(node).__name__ in _CONSTANT_NODES


def _keep_decimal_scale(node: exp.Expr) -> exp.Expr:
    """Replace DECIMAL '1.20' by the literal 1.20: a cast would lose its scale."""
    from sqlglot import exp

    for cast in list(node.find_all(exp.Cast)):
        text = cast.this
        if not (cast.is_type(exp.DType.DECIMAL) and isinstance(text, exp.Literal)):
            continue
        if cast.to.expressions or not text.is_string:
            continue
        digits = text.name.strip()
        if not digits.lstrip("+-").replace(".", "", 1).isdecimal() or not digits.isascii():
            raise TrinoError("GENERIC_USER_ERROR", "A parameter is not a DECIMAL.", "Write digits.")
        number: exp.Expr = exp.Literal.number(digits.lstrip("+-"))
        number = exp.Neg(this=number) if digits.startswith("-") else number
        if cast is node:
            node = number
        else:
            cast.replace(number)
    return node


def _not_constant_error() -> TrinoError:
    return TrinoError(
        "EXPRESSION_NOT_CONSTANT", "A parameter is not a constant.", "Pass values, not expressions."
    )
