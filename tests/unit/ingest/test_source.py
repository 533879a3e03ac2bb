from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.errors import BadInput, ContractError
from thermocline.ingest.source import Source, TextOptions, find_source, load_sources

GOOD = """\
name: orders
kind: files
path: landing/orders
pattern: "*.csv*"
format: csv
target: bronze.raw_orders
options: {delimiter: ";", null: NA, encoding: CP1252, multiline: true}
maxLineBytes: 1000
badShare: 0.1
settle: 5
"""


def load(tmp_path: Path, **files: str) -> dict[str, Source]:
    folder = tmp_path / "sources"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return load_sources(folder, warehouse=str(tmp_path / "lake"))


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ContractError) as caught:
        load(tmp_path, orders=text)
    return [str(problem) for problem in caught.value.problems]


def test_a_source_as_written(tmp_path: Path) -> None:
    assert load(tmp_path, orders=GOOD) == {
        "orders": Source(
            name="orders",
            path=str(tmp_path / "landing/orders"),
            target="bronze.raw_orders",
            pattern="*.csv*",
            format="csv",
            options=TextOptions(delimiter=";", null="NA", encoding="cp1252", multiline=True),
            max_line_bytes=1000,
            bad_share=0.1,
            settle=5,
        )
    }


def test_what_is_left_out_has_defaults(tmp_path: Path) -> None:
    (source,) = load(
        tmp_path, events="path: s3://raw/events/\ntarget: bronze.raw_events\n"
    ).values()
    assert (source.name, source.path, source.is_remote) == ("events", "s3://raw/events", True)
    assert (source.format, source.max_line_bytes, source.bad_share) == ("auto", 16 << 20, 0.5)
    assert source.quarantine == "quarantine.raw_events"


def test_no_folder_no_sources(tmp_path: Path) -> None:
    assert load_sources(tmp_path / "sources") == {}


def test_all_problems_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = """\
name: ../x
kind: kafak
path: ../outside
formt: csv
format: xml
target: silver.orders
options:
  delimiter: "ab"
  header: "yes"
  encoding: ebcdic
  colour: red
maxLineBytes: many
badShare: 2
"""
    found = problems(tmp_path, text)
    assert [line.split("  ")[0].removeprefix("sources/orders.yaml:") for line in found] == [
        "2", "4", "1", "6", "13", "3", "5", "8", "9", "10", "11", "12",
    ]  # fmt: skip
    said = "\n".join(found)
    for each in (
        'unknown "formt"; did you mean "format"?',
        '"kafak" is not in this version; did you mean "kafka"?',
        '"../x" is not a valid name',
        '"../outside" cannot be used',
        '"silver.orders" cannot be a target',
        '"xml" is not in this version',
        "options.delimiter",
        '"many" is not a number',
        "badShare: 2 is not between 0 and 1",
    ):
        assert each in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "a source is a mapping"),
        ("name: [", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "sources/orders.yaml:1"),
        ("kind: files", "path: is missing"),
        ("path: http://x/y\ntarget: bronze.a", "not in this version; use a folder"),
        ("path: lake/raw\ntarget: bronze.a", "overlap"),
        ("path: .\ntarget: bronze.a", "overlap"),
        ('path: "a\\0b"\ntarget: bronze.a', "cannot be used"),
        ("path: a\ntarget: bronze.a;drop", "cannot be a target"),
        ("path: a\ntarget: bronze.a\noptions: csv", "options: must be a mapping"),
    ],
)
def test_what_cannot_be_a_source(tmp_path: Path, text: str, said: str) -> None:
    assert said in "\n".join(problems(tmp_path, text))


def test_two_files_may_not_define_one_name(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="defined in two files"):
        load(tmp_path, a=GOOD, b=GOOD)


def test_the_pattern_means_the_name_or_the_path() -> None:
    source = Source("a", "/in", "bronze.a", pattern="2026-*.jsonl")
    assert source.matches("2026-01.jsonl")
    assert source.matches("deep/2026-01.jsonl")
    assert not source.matches("deep/2025-01.jsonl")


def test_an_unknown_source_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"no source \"b\"[\s\S]*sources: a"):
        find_source({"a": Source("a", "/in", "bronze.a")}, "b")
