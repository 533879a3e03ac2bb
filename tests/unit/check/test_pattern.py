"""Patterns that engines read alike, and those that are refused."""

from __future__ import annotations

import duckdb
import pytest

from thermocline.check.pattern import PatternError, translate_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("b", "abc", "acd"),
        ("^abc$", "abc", "abc\n"),
        ("^$", "", "\n"),
        ("a.c", "a\rc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        (r"^\d+$", "123", "١٢٣"),
        (r"^\w+$", "abc_1", "é"),
        (r"a\sb", "a\tb", "a\x0bb"),
        (r"^\S+$", "a\x0bb", "a b"),
        (r"[\s,]x", "\nx", ".x"),
        (r"\bcat\b", "a cat.", "concat"),
        ("(?i)straße", "STRAßE", "strasse"),
        ("(?i:É)a", "éa", "éA"),
        (r"^\p{Lu}\p{Ll}+$", "Éa", "éa"),
        (r"^\pL$", "é", "1"),
        (r"^[\x41-\x{43}]$", "B", "D"),
        (r"^[^a-c\]\-]$", "d", "-"),
        ("^(?P<year>[0-9]{4})-(?<month>[0-9]{2})$", "2026-03", "26-03"),
        ("^(?:ab|cd){2,3}?$", "abcd", "ab"),
        (r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", "a.b+c@x-y.org", "a@b"),
        ("^.$", "😀", "ab"),
        ("}]", "}]", "}"),
        (r"\A\$\{x\}\z", "${x}", "x"),
        ("[$]", "$", "a"),
    ],
)
def test_pattern_matches(pattern, matching, other):
    written = translate_pattern(pattern).duckdb
    found = duckdb.execute(
        "select regexp_matches(?, ?), regexp_matches(?, ?)", [matching, written, other, written]
    ).fetchone()
    assert found == (True, False)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)", "(?=a at character 1"),
        ("(?<!a)b", "(?<! at character 1"),
        ("(?>a)", "(?>a"),
        ("(?m)^a$", "(?m)"),
        ("(?x) a", "(?x)"),
        ("(?)", "is empty"),
        ("(?#x)", "(?#x"),
        (r"(a)\1", r"\1 at character 4"),
        (r"\Z", r"\Z"),
        (r"\Bcat", r"\B"),
        (r"\h", r"\h"),
        (r"\v", r"\v"),
        (r"\Qa\E", r"\Q"),
        (r"\p{Greek}", r"\p"),
        (r"\é", r"\é"),
        (r"\x{110000}", r"\x"),
        ("a++", "+ at character 3 repeats nothing"),
        ("a**", "repeats nothing"),
        ("*a", "repeats nothing"),
        ("a|*", "repeats nothing"),
        ("^*", "repeats nothing"),
        ("a{", "is not a count"),
        ("a{,3}", "is not a count"),
        ("a{2,1}", "counts backwards"),
        ("a{1001}", "counts further than 1000"),
        ("(a", "is not closed"),
        ("a)", ") too many at character 2"),
        ("[a", "is not closed"),
        ("[]a]", "write \\]"),
        ("[[:alpha:]]", "write \\["),
        ("[a&&b]", "&&"),
        ("[z-a]", "runs backwards"),
        (r"[\w-z]", "needs two characters"),
        ("[a-", "has no end"),
        (r"[\S]", r"\S"),
        ("a\\", "single backslash"),
    ],
)
def test_pattern_is_refused(pattern, words):
    with pytest.raises(PatternError) as refused:
        translate_pattern(pattern)
    assert words in str(refused.value)
