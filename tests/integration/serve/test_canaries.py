"""Secrets of the environment and of settings: nothing that anybody asks gets them back."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.serve import fuzz, serving
from tests.integration.serve.serving import Serving, thermo

CANARY = "c4n4ry"
PLANTED = {
    "THERMOCLINE_LAKE__S3__ACCESS_KEY": f"{CANARY}-access",
    "THERMOCLINE_LAKE__S3__SECRET_KEY": f"{CANARY}-s3'||(select 1)||'\\",
    "AWS_SECRET_ACCESS_KEY": f'{CANARY}-aws" from x where "\\\\',
    "PGPASSWORD": f"{CANARY}-pg`, (select '\\'",
    "SOME_TOKEN": f"{CANARY}-plain",
    "NESTED": "${env:SOME_TOKEN}",
}
SETTINGS = f"""{serving.COLD}
[lake.s3]
endpoint = "http://127.0.0.1:9"
"""
OF_SPARK = "spark.sql.catalog.lake.s3.secret-access-key"
EXPANDED = [
    *(f"${{env:{name}}}" for name in PLANTED),
    "${system:user.name}", "${system:java.class.path}", f"${{{OF_SPARK}}}", "${hiveconf:x}",
    f"${{spark:{OF_SPARK}}}", "${spark.app.name}", "${hivevar:x}", "${env:NES${env:X}TED}",
    "${sparkconf:spark.master}", "$${env:SOME_TOKEN}", "${ENV:SOME_TOKEN}",
]  # fmt: skip
SHAPES = [
    "SELECT '{}' AS a FROM silver.orders LIMIT 1",
    "SELECT 1 AS {q}{}{q} FROM silver.orders LIMIT 1",
    "SELECT 1 /* {} */ AS a FROM silver.orders LIMIT 1",
    "SELECT 1 AS a FROM silver.orders -- {}",
    "SELECT note = '{}' FROM silver.orders",
    "WITH {q}{}{q} AS (SELECT 1 AS a) SELECT a FROM {q}{}{q}",
]
REACHING = [
    "getenv('SOME_TOKEN')", "java_method('java.lang.System', 'getenv', 'SOME_TOKEN')",
    "reflect('java.lang.System', 'getenv', 'SOME_TOKEN')", "input_file_name()",
    "try_reflect('java.lang.System', 'getenv', 'SOME_TOKEN')", "version()", "current_user()",
    "current_setting('memory_limit')", "user()", "session_user()", "current_catalog()",
    "current_schemas(true)", "getvariable('x')", "input_file_block_start()", "current_database()",
    "parse_duckdb_log_message('a', 'b')", "current_query()", "spark_partition_id()",
]  # fmt: skip
STATEMENTS = [
    "SET spark.sql.variable.substitute = true", "SET -v", "SET", "SET VAR x = '${env:SOME_TOKEN}'",
    "DECLARE x = 1", "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_variables()", "SHOW SESSION", "EXECUTE IMMEDIATE 'SELECT 1'",
    "RESET spark.sql.variable.substitute", "SHOW TBLPROPERTIES silver.orders",
    "PRAGMA database_list", "CALL pragma_version()", "SELECT :x", "SELECT ?", "SELECT @x",
]  # fmt: skip
QUOTES = {"duckdb": '"', "trino": '"', "spark": "`"}


@dataclass
class QueryLog:
    """The server, and all that it ever said."""

    serving: Serving
    said: list[str] = field(default_factory=list)

    def query(self, sql: str, dialect: str) -> int:
        body = {"sql": sql, "dialect": dialect, "timeout": 120}
        reply = httpx.post(self.serving.url + "/query", json=body, timeout=150)
        self.said.append(f"{dialect} {reply.text}")
        return reply.status_code

    def trino(self, sql: str) -> list[Any]:
        with httpx.Client(base_url=self.serving.url, timeout=150) as client:
            reply = client.post("/v1/statement", content=sql, headers={"X-Trino-User": "t"})
            self.said.append(reply.text)
            if reply.status_code != 200:
                return []
            pages = list(fuzz.pages(client, reply.json(), {}))
        self.said += [json.dumps(page) for page in pages]
        return pages


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryLog]:
    project = serving.shop(tmp_path_factory.mktemp("canaries") / "p", SETTINGS)
    private = project / ".thermocline"
    private.mkdir(exist_ok=True)
    private.chmod(0o755)
    (private / "serve.log").touch()
    (private / "serve.log").chmod(0o644)
    with serving.started(project, **PLANTED) as started:
        made = QueryLog(started)
        # Who reads files may not be there yet, and Spark is not asked what is asked first here.
        serving.until(lambda: made.query("SELECT '${' FROM silver.orders", "duckdb") == 200, 60)
        yield made


def texts(dialect: str) -> list[str]:
    return [
        shape.format(*[hidden] * shape.count("{}"), q=QUOTES[dialect])
        for hidden in EXPANDED
        for shape in SHAPES
    ]


def leaks(said: str) -> list[str]:
    """What a text gives away. What was asked is no secret: only values are."""
    return re.findall(rf"{CANARY}[^\s]{{0,40}}", said)


@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_nothing_is_expanded_in_a_text(asked: QueryLog, dialect: str) -> None:
    ends = {sql: asked.query(sql, dialect) for sql in texts(dialect)}
    assert set(ends.values()) <= {200, 400, 404}, ends
    if dialect == "spark":
        assert set(ends.values()) == {400}
    elif dialect == "duckdb":
        assert 200 in ends.values()
    assert [each for each in asked.said if leaks(each)] == []


def test_spark_answers_in_its_own_dialect(asked: QueryLog) -> None:
    """Without which what is refused in it would prove nothing."""
    assert asked.query("SELECT count(*) FROM silver.orders WHERE note <> '$ {'", "spark") == 200
    assert '"engine":"spark"' in asked.said[-1]


def test_nothing_is_expanded_for_trinos_clients(asked: QueryLog) -> None:
    for sql in texts("trino"):
        asked.trino(sql)
    answered = [each for each in asked.said if '"state": "FINISHED"' in each]
    assert answered
    assert [each for each in asked.said if leaks(each)] == []


@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_no_function_looks_beyond_its_arguments(asked: QueryLog, dialect: str) -> None:
    every = [f"SELECT {call} FROM silver.orders LIMIT 1" for call in REACHING] + STATEMENTS
    ends = {sql: asked.query(sql, dialect) for sql in every}
    assert set(ends.values()) <= {400, 404}, ends
    assert [each for each in asked.said if leaks(each)] == []


def test_no_process_shows_them(asked: QueryLog) -> None:
    asked.query("SELECT count(*) FROM silver.orders", "spark")
    seen = {}
    waiting = serving.children(asked.serving.process.pid)
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
            seen[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
            waiting += serving.children(pid)
            if b"serve.node" in seen[pid]:
                continue  # its environment cannot even be read
            seen[pid] += Path(f"/proc/{pid}/environ").read_bytes()
    assert any(b"java" in each for each in seen.values()), "Spark is among them"
    assert [pid for pid, text in seen.items() if CANARY.encode() in text] == []


def test_no_log_holds_them(asked: QueryLog) -> None:
    asked.query("SELECT '${env:SOME_TOKEN}'", "spark")
    folder = asked.serving.project / ".thermocline"
    logs = {path: path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}
    assert any(path.name == "serve.log" for path in logs)
    assert [path for path, text in logs.items() if CANARY in text] == []


def test_no_other_user_can_read_what_the_server_writes(asked: QueryLog) -> None:
    asked.query("SELECT count(*) FROM silver.orders", "spark")
    folder = asked.serving.project / ".thermocline"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("serve.log", "serve.json", "spark.log"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_the_command_line_gives_a_text_as_it_is_or_refuses_it(asked: QueryLog, engine: str) -> None:
    found = thermo(
        "query", "SELECT '${env:SOME_TOKEN}' AS a, '${system:user.name}' AS b", "--engine", engine,
        "--json", cwd=asked.serving.project, **PLANTED,
    )  # fmt: skip
    answer = json.loads(found.stdout)
    if engine == "duckdb":
        assert answer["rows"] == [["${env:SOME_TOKEN}", "${system:user.name}"]]
    else:
        assert answer["error"]["code"] == "bad-input"
        assert "${" in answer["error"]["cause"]
        assert answer["error"]["next_step"] == "Use DuckDB: `--engine duckdb`."
    assert not leaks(found.stdout + found.stderr)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_nor_do_functions_reach_out_there(asked: QueryLog, engine: str) -> None:
    calls = [call for call in REACHING if "SOME_TOKEN" in call] + ["input_file_name()"]
    for call in calls:
        found = thermo(
            "query", f"SELECT {call} AS a FROM silver.orders LIMIT 1", "--engine", engine,
            cwd=asked.serving.project, **PLANTED,
        )  # fmt: skip
        assert found.returncode == 2, found.stdout
        assert not leaks(found.stdout + found.stderr)


MODEL = "SELECT order_id, '${env:SOME_TOKEN} ${system:user.name}' AS said FROM silver.orders"


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_a_models_text_is_no_template(tmp_path: Path, engine: str) -> None:
    project = serving.shop(tmp_path / "p", f'[transform]\nengine = "{engine}"\n')
    files = {
        "models/gold/said.sql": MODEL,
        "contracts/gold/said.odcs.yaml": _contract("gold.said", "said: string"),
        "contracts/silver/orders.odcs.yaml": _contract("silver.orders", "note: string"),
    }
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    ran = thermo("run", "--json", cwd=project, **PLANTED)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not leaks(ran.stdout + ran.stderr)
    found = thermo("query", "SELECT DISTINCT said FROM gold.said", "--json", cwd=project)
    assert json.loads(found.stdout)["rows"] == [["${env:SOME_TOKEN} ${system:user.name}"]]
    logs = [each for each in (project / ".thermocline").rglob("*") if each.is_file()]
    assert [each for each in logs if CANARY in each.read_text(errors="replace")] == []


def _contract(table: str, column: str) -> str:
    name, kind = column.split(": ")
    return (
        f"apiVersion: v3.1.0\nkind: DataContract\nid: p.{table}\nversion: 1.0.0\n"
        f"status: active\nschema:\n  - name: {table.partition('.')[2]}\n    quality:\n"
        '      - {type: sql, mustBe: 0, query: "select count(*) from {object} where '
        f"{name} = '${{env:SOME_TOKEN}}x'\"}}\n"
        "    properties:\n      - {name: order_id, physicalType: long, required: true}\n"
        f"      - {{name: {name}, physicalType: {kind}}}\n"
        "customProperties:\n  - {property: write, value: replace}\n"
    )
