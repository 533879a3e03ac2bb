"""Regular expressions that mean the same on every engine.

DuckDB matches with RE2, Spark with java.util.regex. They share a core and differ in details:
whether `$` may match before a final newline, what `.` excludes, what is a space or a word boundary.
A pattern is parsed once, refused where the engines have no common meaning, and written for each
engine so that the details agree. Matches are partial unless the pattern is anchored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPACE = r"\t\n\f\r "
_BOUNDARY = r"(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d+)(?:,(\d*))?\})(\??)")
_GROUP = re.compile(r"\((?:\?(?:(P?<[A-Za-z]\w*>)|([is]*(?:-[is]+)?)(:|\))))?")
_CODE = re.compile(r"x(?:[0-9A-Fa-f]{2}|\{([0-9A-Fa-f]{1,6})\})")
_CATEGORY = re.compile(r"[pP](?:[CLMNPSZ]|\{[CLMNPSZ][a-z]?\})")
_REPEATS = 1000  # RE2 counts no further

# Java flags: only \n ends a line, and (?i) includes letters beyond ASCII.
_SPARK_PREFIX = "(?du)"


class PatternError(ValueError):
    """A pattern that is invalid, or that the engines interpret differently."""


@dataclass(frozen=True)
class Pattern:
    """One regular expression, written for each engine."""

    duckdb: str
    spark: str


def translate_pattern(pattern: str) -> Pattern:
    """Translate a pattern for each engine; raise PatternError for what has no common meaning."""
    parser = _PatternParser(pattern)
    parser.parse()
    return Pattern("".join(parser.duckdb), _SPARK_PREFIX + "".join(parser.spark))


class _PatternParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.duckdb: list[str] = []
        self.spark: list[str] = []

    def parse(self) -> None:
        depth = 0
        repeatable = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(":
                opened = self._group()
                depth += opened
                repeatable = False
            elif char == ")":
                depth -= 1
                if depth < 0:
                    raise PatternError(f"a ) too many at character {self.at + 1}")
                self._both(char)
                repeatable = True
            elif char in "*+?{":
                self._quantifier(repeatable)
                repeatable = False
            elif char == "[":
                self._class()
                repeatable = True
            elif char == "\\":
                repeatable = self._escape()
            elif char == "$":
                # In Java $ also matches before a final newline.
                self._both(char, r"\z")
                repeatable = False
            else:
                self._both(char)
                repeatable = char not in "^|"
        if depth:
            raise PatternError("a ( is not closed")

    def _both(self, taken: str, duckdb: str | None = None, spark: str | None = None) -> None:
        """Consume `taken`; write it, or its replacement for each engine."""
        written = taken if duckdb is None else duckdb
        self.duckdb.append(written)
        self.spark.append(written if spark is None else spark)
        self.at += len(taken)

    def _group(self) -> int:
        """Read an opening parenthesis; return 1 if it opens a group, 0 if it only sets flags."""
        found = _GROUP.match(self.text, self.at)
        taken = found.group() if found else "("
        if found and found[1]:
            # A name does not affect the match, and the engines spell it differently.
            self._both(taken, "(")
        elif found and found[3] and not found[2] and found[3] == ")":
            raise PatternError(f"(?) at character {self.at + 1} is empty")
        elif self.text.startswith("(?", self.at) and taken == "(":
            shown = self.text[self.at : self.at + 4]
            raise PatternError(
                f"{shown} at character {self.at + 1}: only groups and the flags i and s "
                "mean the same on every engine"
            )
        else:
            self._both(taken)
        return 0 if found and found[3] == ")" else 1

    def _quantifier(self, repeatable: bool) -> None:
        found = _QUANTIFIER.match(self.text, self.at)
        if not found:
            raise PatternError(f"{{ at character {self.at + 1} is not a count; write \\{{")
        if not repeatable:
            raise PatternError(f"{found.group()} at character {self.at + 1} repeats nothing")
        low, high = found[1], found[2]
        if low and max(int(low), int(high or 0)) > _REPEATS:
            raise PatternError(f"{found.group()} counts further than {_REPEATS}")
        if low and high and int(high) < int(low):
            raise PatternError(f"{found.group()} counts backwards")
        self._both(found.group())

    def _escape(self) -> bool:
        """Read one escape outside a class; return whether it can be repeated."""
        after = self.text[self.at + 1 : self.at + 2]
        translated = {
            "s": (f"[{_SPACE}]", None, True),
            "S": (f"[^{_SPACE}]", None, True),
            "b": (r"\b", _BOUNDARY, False),
            "A": (r"\A", None, False),
            "z": (r"\z", None, False),
        }.get(after)
        if translated:
            duckdb, spark, repeatable = translated
            self._both("\\" + after, duckdb, spark)
            return repeatable
        self._both("\\" + self._escaped())
        return True

    def _escaped(self) -> str:
        """Read an escape that means the same inside and outside of a class."""
        after = self.text[self.at + 1 : self.at + 2]
        if not after:
            raise PatternError("the pattern ends with a single backslash")
        if after in "dDwWtnrf" or (after.isascii() and not after.isalnum() and after.isprintable()):
            return after
        for known in (_CODE, _CATEGORY):
            found = known.match(self.text, self.at + 1)
            if found and not (known is _CODE and found[1] and int(found[1], 16) > 0x10FFFF):
                return found.group()
        raise PatternError(
            f"\\{after} at character {self.at + 1} does not mean the same on every engine"
        )

    def _class(self) -> None:
        opening = "[^" if self.text.startswith("[^", self.at) else "["
        start = self.at
        self._both(opening)
        members = 0
        while True:
            char = self.text[self.at : self.at + 1]
            if not char:
                raise PatternError(f"[ at character {start + 1} is not closed")
            if char == "]" and members:
                self._both(char)
                return
            if char in "[]":
                raise PatternError(
                    f"{char} at character {self.at + 1} inside a class; write \\{char}"
                )
            if self.text.startswith("&&", self.at):
                raise PatternError("&& inside a class does not mean the same on every engine")
            self._member(char)
            members += 1

    def _member(self, char: str) -> None:
        """Read one member of a class, or a range of two."""
        low = self._single(char)
        if not self.text.startswith("-", self.at) or self.text.startswith("-]", self.at):
            return
        self._both("-")
        char = self.text[self.at : self.at + 1]
        if not char or char in "[]":
            raise PatternError("a range inside a class has no end")
        high = self._single(char)
        if low is None or high is None:
            raise PatternError("a range inside a class needs two characters; write \\- for a dash")
        if high < low:
            raise PatternError(f"{low}-{high} inside a class runs backwards")

    def _single(self, char: str) -> str | None:
        """Consume one character or escape of a class; return the character if it is only one."""
        if char != "\\":
            self._both(char)
            return char
        after = self.text[self.at + 1 : self.at + 2]
        if after == "s":
            self._both(r"\s", _SPACE)
            return None
        escaped = self._escaped()
        self._both("\\" + escaped)
        if escaped in "dDwW" or escaped[0] in "pP":
            return None
        if escaped[0] == "x":
            return chr(int(escaped[1:].strip("{}"), 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escaped, escaped)
