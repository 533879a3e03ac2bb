"""`thermo token`, `thermo serve` and `thermo query` with a server that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.serve.fixed_router import ROWS, FixedRouter, opened, serving

from thermocline.config import load_settings
from thermocline.serve.http import server_record
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.identity.token_store import TokenStore
from thermocline.serve.values import Caller

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "thermocline.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_token_is_shown_once(run: Run, project: Path) -> None:
    code, out, _ = run("token", "create", "dashboard", "--role", "analyst", "--role", "eu")
    assert code == 0
    token = out.strip()
    assert TokenStore(project).find_caller(token) == Caller("dashboard", ("analyst", "eu"))
    _, out, _ = run("token", "create", "short", "--days", "1", "--json")
    assert TokenStore(project).find_caller(json.loads(out)["token"]) == Caller("short")
    _, out, err = run("token", "list")
    rows = [line.split() for line in out.splitlines()]
    assert rows[1][:4] == ["dashboard", "analyst", "eu", "valid"]
    assert rows[1][-1] == "never"
    assert token not in out + err
    assert run("token", "revoke", "dashboard")[1] == "revoked dashboard\n"
    assert TokenStore(project).find_caller(token) is None
    _, out, _ = run("token", "list", "--json")
    assert [(each["name"], each["state"]) for each in json.loads(out)] == [
        ("dashboard", "revoked"),
        ("short", "valid"),
    ]
    assert "sha256" not in out


def test_tokens_that_cannot_be(run: Run, project: Path) -> None:
    assert run("token", "list")[1].startswith("There are no tokens yet.")
    for arguments in (["create", "a b"], ["create", "x", "--days", "0"], ["revoke", "nobody"]):
        code, out, err = run("token", *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 2)
    assert TokenStore(project).all() == []


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--host", "0.0.0.0"], "Listening on 0.0.0.0 would let every machine"),
        (["--host", "203.0.113.7"], "Listening on 203.0.113.7 would let every machine"),
        (["--port", "99999"], "Invalid value for '--port'"),
    ],
)
def test_serve_refuses_to_be_open_to_others(
    run: Run, project: Path, arguments: list[str], cause: str
) -> None:
    code, out, err = run("serve", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(cause)
    assert not (project / ".thermocline" / "serve.json").exists()


def test_the_router_holds_no_engine(project: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from thermocline.config import load_settings;"
        "from thermocline.serve.assembly import assemble; import thermocline.serve.http.server;"
        "assemble(load_settings(Path.cwd())); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=project
    )
    heavy = {"duckdb", "pyarrow", "pyiceberg", "pyspark", "numpy", "pandas", "fastapi", "pydantic"}
    loaded = set(done.stdout.split())
    assert "sqlglot" in loaded
    assert loaded & heavy == set()


def leave(project: Path, url: str, **changed: Any) -> Path:
    note = server_record.write_record(load_settings(project, None, {}), url)
    file = project / ".thermocline" / server_record.FILE
    if changed:
        file.write_text(json.dumps({**vars(note), **changed}))
    return file


def engine(run: Run, *arguments: str) -> str:
    code, out, _ = run("query", "select 1 as one", *arguments, "--json")
    assert code == 0
    found: str = json.loads(out)["provenance"]["engine"]
    return found


def test_query_asks_the_server_of_its_project(run: Run, project: Path) -> None:
    with serving(FixedRouter(), opened(project)) as url:
        file = leave(project, url)
        assert file.stat().st_mode & 0o777 == 0o600
        _, out, _ = run("query", "select id, text from silver.orders", "--json")
        assert json.loads(out)["rows"] == ROWS
        _, out, _ = run("query", "select 1")
        assert out.splitlines()[-1].startswith("3 rows   hot")
        assert engine(run) == "hot"
        assert engine(run, "--no-server") == "duckdb"
        assert engine(run, "--engine", "duckdb") == "duckdb"
        # What the server refuses or lacks is answered here.
        code, _, err = run("query", "select * from test.busy")
        assert (code, err.splitlines()[0]) == (2, "There is no table test.busy.")
        leave(project, url, lake="another lake")
        assert engine(run) == "duckdb"
        leave(project, url)
        file.chmod(0o666)
        assert engine(run) == "duckdb"
    leave(project, url)
    assert engine(run) == "duckdb"  # it is gone, its note is not


def test_query_shows_the_token_it_was_given(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = TokenStore(project).create("ann")
    with serving(FixedRouter(), Authenticator(TokenStore(project))) as url:
        leave(project, url)
        assert engine(run) == "duckdb"
        monkeypatch.setenv("THERMOCLINE_TOKEN", token)
        assert engine(run) == "hot"


def test_a_note_is_taken_away_by_who_left_it(project: Path) -> None:
    file = leave(project, "http://127.0.0.1:1", pid=os.getpid() + 1)
    server_record.remove_record(project)
    assert file.exists()
    leave(project, "http://127.0.0.1:1")
    server_record.remove_record(project)
    assert not file.exists()
    file.write_text("{")
    assert server_record.find_record(project) is None
