"""Letters whose upper or lower case differs between DuckDB and Spark or Trino.

DuckDB maps each letter to one letter. Spark may return several (ﬁ becomes FI), considers adjacent
letters, and uses a newer Unicode version. All code points were compared between DuckDB 1.5 and
Spark 4.1, alone and next to others: only those below differ. Trino maps letter to letter like
DuckDB, but with the Unicode version of its Java, which may be newer; and it does not change ß.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import T
from thermocline.sql.dialect.rewrite import call
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import text_literal


def _parse_letters(points: str) -> str:
    """Return the letters of a list of code points and ranges."""
    ends = [each.partition("-") for each in points.split()]
    return "".join(
        chr(point)
        for first, _, last in ends
        for point in range(int(first, 16), int(last or first, 16) + 1)
    )


_TO_UPPER = (
    _parse_letters("df 1f80-1f87 1f90-1f97 1fa0-1fa7 1fb3 1fc3 1ff3"),
    _parse_letters("1e9e 1f88-1f8f 1f98-1f9f 1fa8-1faf 1fbc 1fcc 1ffc"),
)
"""Letters and their upper case in DuckDB, at the same positions."""
_NO_UPPER = _parse_letters(
    "149 19b 1f0 264 390 3b0 587 1c8a 1e96-1e9a 1f50 1f52 1f54 1f56 1f88-1f8f 1f98-1f9f 1fa8-1faf"
    " 1fb2 1fb4 1fb6-1fb7 1fbc 1fc2 1fc4 1fc6-1fc7 1fcc 1fd2-1fd3 1fd6-1fd7 1fe2-1fe4 1fe6-1fe7"
    " 1ff2 1ff4 1ff6-1ff7 1ffc a7cd a7db fb00-fb06 fb13-fb17 10d70-10d85"
)
_NEWER_UPPER = _parse_letters("19b 264 1c8a a7cd a7db 10d70-10d85")
_TO_LOWER = ("İΣ", "iσ")
_NO_LOWER = _parse_letters("1c89 a7cb-a7cc a7da a7dc 10d50-10d65")


def rewrite_upper_for_spark(node: exp.Expr) -> exp.Expr:
    """Rewrite UPPER with DuckDB's result."""
    return _change_case_in_spark("UPPER", node, _TO_UPPER, _NO_UPPER)


def rewrite_lower_for_spark(node: exp.Expr) -> exp.Expr:
    """Rewrite LOWER with DuckDB's result."""
    return _change_case_in_spark("LOWER", node, _TO_LOWER, _NO_LOWER)


def rewrite_upper_for_trino(node: exp.Expr) -> exp.Expr:
    """Rewrite UPPER with DuckDB's result."""
    require_family(node.this, "text", of=node)
    return _change_case_in_trino(
        "UPPER", call("REPLACE", node.this, text_literal("ß"), text_literal("ẞ")), _NEWER_UPPER
    )


def rewrite_lower_for_trino(node: exp.Expr) -> exp.Expr:
    """Rewrite LOWER with DuckDB's result."""
    require_family(node.this, "text", of=node)
    return _change_case_in_trino("LOWER", node.this, _NO_LOWER)


def _change_case_in_trino(name: str, value: exp.Expr, letters: str) -> exp.Expr:
    """Call Trino's function; map letter by letter for a text with one of the letters."""
    without = call("TRANSLATE", value.copy(), text_literal(letters), text_literal(""))
    letter = exp.column("letter", quoted=True)
    among = exp.GT(
        this=call("STRPOS", text_literal(letters), letter), expression=exp.Literal.number(0)
    )
    each = exp.Lambda(
        this=call("IF", among, letter.copy(), call(name, letter.copy())),
        expressions=[exp.to_identifier("letter", quoted=True)],
    )
    split = call("REGEXP_EXTRACT_ALL", value.copy(), text_literal("(?s)."))
    joined = call("ARRAY_JOIN", call("TRANSFORM", split, each), text_literal(""))
    plain = exp.EQ(this=without, expression=value.copy())
    return call("IF", plain, call(name, value), joined, kind=T.TEXT)


def _change_case_in_spark(
    name: str, node: exp.Expr, to: tuple[str, str], unchanged: str
) -> exp.Expr:
    """Call Spark's function; map letter by letter for a text with a letter that differs."""
    require_family(node.this, "text", of=node)
    differing = text_literal(to[0] + unchanged)
    without = call("TRANSLATE", node.this.copy(), differing, text_literal(""))
    letter = exp.column("letter", quoted=True)
    differs = call("CONTAINS", differing.copy(), letter)
    mapped = call("TRANSLATE", letter.copy(), text_literal(to[0]), text_literal(to[1]))
    each = exp.Lambda(
        this=call("IF", differs, mapped, call(name, letter.copy())),
        expressions=[exp.to_identifier("letter", quoted=True)],
    )
    one_by_one = call("TRANSFORM", call("SPLIT", node.this.copy(), text_literal("")), each)
    plain = exp.EQ(this=without, expression=node.this.copy())
    joined = call("ARRAY_JOIN", one_by_one, text_literal(""))
    return call("IF", plain, call(name, node.this), joined, kind=T.TEXT)
