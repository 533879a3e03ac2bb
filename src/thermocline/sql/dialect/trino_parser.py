"""The parser's Trino dialect, with Trino's types of literals."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.trino import Trino
from sqlglot.parsers.trino import TrinoParser

_DECIMAL = re.compile(r"\s*[+-]?(?:0*(?P<whole>\d*))(?:\.(?P<rest>\d*))?\s*")


def _parse_decimal_literal(self: Any, value: exp.Expr, kind: exp.DataType) -> exp.Expr:
    """Type `DECIMAL '1.2'` by its digits; CAST('1.2' AS DECIMAL) has scale 0."""
    found = _DECIMAL.fullmatch(value.name) if isinstance(value, exp.Literal) else None
    if found is not None and not kind.expressions:
        rest = len(found["rest"] or "")
        digits = max(len(found["whole"]) + rest, 1)
        kind = exp.DataType.build(f"DECIMAL({digits}, {rest})")
    cast: exp.Expr = self.expression(exp.Cast(this=value, to=kind))
    return cast


class TrinoDialect(Trino):
    """The dialect for parsing Trino queries."""

    class Parser(TrinoParser):
        TYPE_LITERAL_PARSERS: ClassVar[dict[Any, Any]] = {
            **TrinoParser.TYPE_LITERAL_PARSERS,
            exp.DType.DECIMAL: _parse_decimal_literal,
        }
