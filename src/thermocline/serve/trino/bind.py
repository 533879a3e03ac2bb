"""Parameters of a prepared statement: constants that take the places of its question marks.

They are put into the parsed tree. A parameter is never text of the statement, whatever it holds.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from thermocline.serve.trino import words
from thermocline.serve.trino.faults import Faulty

if TYPE_CHECKING:
    from sqlglot import exp

_CONSTANT = frozenset(
    {
        *("Literal", "Null", "Boolean", "Neg", "Paren", "Cast", "DataType", "DataTypeParam"),
        *("Array", "Struct", "Tuple", "Map", "VarMap", "ToMap", "HexString"),
        *("Interval", "IntervalSpan", "Var"),
    }
)
"""What a parameter is built of: nothing that reads, and nothing that is computed."""
_CALLS = frozenset({"row", "infinity", "nan"})


def parameters(text: str) -> list[exp.Expr]:
    """The constants that are written, with commas between them, after USING."""
    from sqlglot import exp

    # As the only part of a SELECT it can be nothing but a list of expressions, and is judged so.
    sql = f"SELECT {text}"
    tree = words.parsed(words.tokens(sql), sql)
    more = [name for name, part in tree.args.items() if part and name != "expressions"]
    if type(tree) is not exp.Select or more:
        raise _not_constant()
    for node in tree.find_all(exp.Expr):
        if node is not tree and not _is_constant(node):
            raise _not_constant()
    return [_exact(each) for each in tree.expressions]


def places(sql: str) -> int:
    """How many parameters a statement has."""
    return sum(token.token_type.name == "PLACEHOLDER" for token in words.tokens(sql))


def bound(sql: str, values: list[exp.Expr]) -> exp.Query:
    """A query with its question marks, from left to right, replaced by constants."""
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token, TokenType

    # The tree is not in the order of the text, so each mark is told apart before parsing.
    mark = secrets.token_hex(8)
    found = words.tokens(sql)
    count = 0
    for index, token in enumerate(found):
        if token.token_type is TokenType.PLACEHOLDER:
            found[index] = Token(
                TokenType.STRING, f"{mark}{count}", token.line, token.col, token.start, token.end
            )
            count += 1
    if count != len(values):
        raise Faulty(
            "INVALID_PARAMETER_USAGE",
            f"Incorrect number of parameters: expected {count} but found {len(values)}.",
            "Give one value for each question mark.",
        )
    tree = words.parsed(found, sql)
    left = count
    for node in list(tree.find_all(exp.Literal)):
        if node.is_string and node.name.startswith(mark):
            node.replace(values[int(node.name[len(mark) :])].copy())
            left -= 1
    if left or tree.find(exp.Placeholder):
        raise Faulty(
            "INVALID_PARAMETER_USAGE",
            "A parameter stands where no value can be.",
            "Use parameters for values only, not for names.",
        )
    return tree


def _is_constant(node: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _CALLS
    return type(node).__name__ in _CONSTANT


def _exact(node: exp.Expr) -> exp.Expr:
    """DECIMAL '1.20' is the number as it is written; as a cast it would lose its scale."""
    from sqlglot import exp

    for cast in list(node.find_all(exp.Cast)):
        text = cast.this
        if not (cast.is_type(exp.DType.DECIMAL) and isinstance(text, exp.Literal)):
            continue
        if cast.to.expressions or not text.is_string:
            continue
        digits = text.name.strip()
        if not digits.lstrip("+-").replace(".", "", 1).isdecimal() or not digits.isascii():
            raise Faulty("GENERIC_USER_ERROR", "A parameter is not a DECIMAL.", "Write digits.")
        number: exp.Expr = exp.Literal.number(digits.lstrip("+-"))
        number = exp.Neg(this=number) if digits.startswith("-") else number
        if cast is node:
            node = number
        else:
            cast.replace(number)
    return node


def _not_constant() -> Faulty:
    return Faulty(
        "EXPRESSION_NOT_CONSTANT", "A parameter is not a constant.", "Give values, not expressions."
    )
