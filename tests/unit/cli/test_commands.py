"""Commands on a real embedded lake that needs no Spark: what a user sees, and what JSON holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, NestedField, StringType

from thermocline.config import load_settings
from thermocline.lake import Lake

Run = Callable[..., tuple[int, str, str]]
TABLE = "silver.orders"


def rows(*pairs: tuple[str, str | None]) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), pa.field("net", pa.decimal128(12, 2))]
    )
    values = [{"id": key, "net": None if net is None else Decimal(net)} for key, net in pairs]
    return pa.Table.from_pylist(values, schema=schema)


def lake_with_two_versions(folder: Path) -> tuple[Path, list[int]]:
    (folder / "thermocline.toml").write_text('[lake]\nname = "shop"\n')
    lake = Lake(load_settings(folder, environ={}))
    lake.catalog.create_namespace("silver")
    table = lake.catalog.create_table(
        TABLE,
        Schema(
            NestedField(1, "id", StringType(), required=True, doc="The order's number"),
            NestedField(2, "net", DecimalType(12, 2), required=False),
            identifier_field_ids=[1],
        ),
    )
    table.append(rows(("a", "1.10"), ("b", None), ("gone", "5.00")))
    table.overwrite(rows(("a", "2.20"), ("b", None), ("[red]new", "7.00")))
    lake.close()
    snapshots = [s.snapshot_id for s in table.metadata.snapshots]
    return folder, [snapshots[0], snapshots[-1]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """One lake for all tests that leave it as it was."""
    return lake_with_two_versions(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def shop(shared: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """The project to stand in, and the first and the last snapshot of its table."""
    monkeypatch.chdir(shared[0])
    return shared


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def answer(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_tables(run: Run, shop: tuple[Path, list[int]]) -> None:
    code, out, _ = run("tables")
    head, line = lines(out)
    assert code == 0
    assert head[:3] == ["table", "rows", "files"]
    assert line[:2] == [TABLE, "3"]
    assert str(shop[1][1]) in line
    (found,) = answer(run, "tables")
    assert (found["name"], found["rows"], found["snapshot"]) == (TABLE, 3, shop[1][1])


def test_an_empty_lake_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thermocline.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("tables")
    assert (code, out.startswith("The lake has no tables yet.")) == (0, True)
    assert answer(run, "tables") == []


def test_looking_starts_no_engine(shop: tuple[Path, list[int]]) -> None:
    script = (
        "import sys; from thermocline.cli.main import run;"
        "codes = [run(['tables']), run(['show', 'silver.orders'])];"
        "codes += [run(['history', 'silver.orders'])];"
        "print(*sys.modules, file=sys.stderr); sys.exit(sum(codes))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=shop[0],
        env=os.environ,
    )
    heavy = {"pyspark", "duckdb", "pyiceberg", "pandas", "sqlalchemy", "pydantic", "sqlglot"}
    assert set(done.stderr.split()) & heavy == set()
    assert done.stdout.count(TABLE) >= 2


def test_show(run: Run, shop: tuple[Path, list[int]]) -> None:
    _, out, _ = run("show", TABLE)
    shown = lines(out)
    assert shown[0][:3] == [TABLE, "3", "rows"]
    assert ["id", "string", "required", "The", "order's", "number"] in shown
    assert ["net", "decimal(12,2)"] in shown
    document = answer(run, "show", TABLE)
    assert document["columns"][1] == {
        "name": "net",
        "type": "decimal(12,2)",
        "required": False,
        "doc": None,
        "classification": None,
    }


def test_history_is_newest_first(run: Run, shop: tuple[Path, list[int]]) -> None:
    first, last = shop[1]
    entries = answer(run, "history", TABLE)
    assert (entries[0]["snapshot"], entries[-1]["snapshot"]) == (last, first)
    assert [entry["current"] for entry in entries] == [True] + [False] * (len(entries) - 1)
    _, out, _ = run("history", TABLE, "--limit", "1")
    assert len(out.splitlines()) == 2
    assert str(last) in out
    assert str(first) not in out


def test_diff_shows_what_was_added_removed_and_changed(
    run: Run, shop: tuple[Path, list[int]]
) -> None:
    first, last = shop[1]
    code, out, _ = run("diff", TABLE, str(first))
    assert code == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        "silver.orders   +1  −1  ~1 rows",
        "  ~   id a   net 1.10 → 2.20",
        "  +   id [red]new   net 7.00",
        "  −   id gone   net 5.00",
    ]
    _, out, _ = run("diff", TABLE, str(last), str(last))
    assert out == "No differences.\n"
    (changes,) = answer(run, "diff", TABLE, str(first), str(last))
    assert changes["counts"] == {"inserts": 1, "updates": 1, "deletes": 1}
    assert changes["updates"][0]["before"] == {"id": "a", "net": "1.10"}


def test_diff_says_how_much_it_left_out(run: Run, shop: tuple[Path, list[int]]) -> None:
    _, out, _ = run("diff", TABLE, str(shop[1][0]), "--limit", "0")
    assert out.splitlines()[1:] == ["  … and 3 more (--limit)"]


@pytest.mark.parametrize(
    "arguments",
    [["diff"], ["diff", TABLE], ["diff", TABLE, "x", "--env", "e"], ["rollback"]],
)
def test_half_a_question_is_refused(
    run: Run, shop: tuple[Path, list[int]], arguments: list[str]
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2
    assert f"thermo {arguments[0]}" in err


def test_query_now_and_then(run: Run, shop: tuple[Path, list[int]]) -> None:
    sql = f"select id, net from {TABLE} order by id"
    code, out, _ = run("query", sql)
    assert code == 0
    assert "│ [red]new │ 7.00 │" in out
    assert "│ b        │ null │" in out
    assert out.splitlines()[-1].startswith("3 rows   duckdb   silver.orders@")
    document = answer(run, "query", sql, "--at", str(shop[1][0]))
    assert document["rows"] == [["a", "1.10"], ["b", None], ["gone", "5.00"]]
    assert document["provenance"]["tables"][TABLE]["snapshot"] == str(shop[1][0])


def test_query_from_standard_input(
    run: Run, shop: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f"select count(*) as n from {TABLE}"))
    assert answer(run, "query", "-")["rows"] == [[3]]


def test_query_prints_no_more_than_its_limit(run: Run, shop: tuple[Path, list[int]]) -> None:
    _, out, _ = run("query", f"select id from {TABLE} order by id", "--limit", "1")
    assert "3 rows, the first 1 shown" in out
    assert "gone" not in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "silver.nothing"], "not-found"),
        (["show", "../etc"], "bad-input"),
        (["history", "a'; drop table t--"], "bad-input"),
        (["query", "select * from silver.nothing"], "not-found"),
        (["query", "drop table silver.orders"], "bad-input"),
        (["query", "select"], "bad-input"),
        (["query", f"select 1 from {TABLE}", "--at", "last week maybe"], "bad-input"),
        (["tag", TABLE, "bad name"], "bad-input"),
        (["rollback", TABLE, "--to", "99999999999"], "not-found"),
        (["rollback", "--run", "01NOTHING"], "not-found"),
        (["publish", "--env", "nowhere"], "not-found"),
        (["diff", "--env", "nowhere"], "not-found"),
    ],
)
def test_what_is_not_there_is_said_in_two_lines(
    run: Run, shop: tuple[Path, list[int]], arguments: list[str], code: str
) -> None:
    exit_code, out, err = run(*arguments)
    assert (exit_code, out) == (2, "")
    cause, next_step = err.splitlines()
    assert cause
    assert next_step.startswith("  ")
    _, out, _ = run(*arguments, "--json")
    assert json.loads(out)["error"]["code"] == code


def test_tag_branch_and_drop(run: Run, shop: tuple[Path, list[int]]) -> None:
    first, last = shop[1]
    assert answer(run, "tag", TABLE, "before", "--at", str(first))["snapshot"] == first
    assert answer(run, "tag", TABLE) == ["before"]
    _, out, _ = run("query", f"select count(*) from {TABLE} where id = 'gone'", "--at", "before")
    assert "│            1 │" in out
    assert run("branch", TABLE, "try")[1] == f"branch try of {TABLE} starts at {last}\n"
    assert answer(run, "branch", TABLE) == ["main", "try"]
    _, out, _ = run("tables")
    assert lines(out)[1][-2:] == ["try", "before"]
    assert run("tag", TABLE, "before", "--drop")[1] == "dropped tag before\n"
    assert run("branch", TABLE, "try", "--drop")[1] == "dropped branch try\n"
    assert run("tag", TABLE)[1] == "There is no tag.\n"


def test_rollback(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (first, last) = lake_with_two_versions(tmp_path)
    monkeypatch.chdir(folder)
    assert answer(run, "rollback", TABLE, "--to", str(first)) == {
        TABLE: {"before": last, "after": first}
    }
    assert answer(run, "tables")[0]["snapshot"] == first
    _, out, _ = run("query", f"select net from {TABLE} where id = 'a'")
    assert "│ 1.10 │" in out


def test_a_broken_setting_reaches_every_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thermocline.toml").write_text("[lake]\nnmae = 'x'\n")
    monkeypatch.chdir(tmp_path)
    for arguments in (["tables"], ["run"], ["query", "select 1"], ["doctor"], ["config"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "did you mean `lake.name`?" in err


def test_init_makes_a_project_that_can_be_opened(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("init", "mine")
    assert code == 0
    assert out.splitlines()[0] == f"Created a project in {tmp_path / 'mine'}"
    assert out.splitlines()[1].startswith("Next:  cd mine && ")
    assert answer(run, "-C", "mine", "config")["project"] == str(tmp_path / "mine")
    code, out, err = run("init", "mine")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "mine already holds a project."
