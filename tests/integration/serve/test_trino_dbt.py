"""A dbt project against this server: debug, run, test, and the catalog of its documentation.

dbt-trino needs a Python environment of its own (`pip install 'dbt-core<1.10' 'dbt-trino<1.10'`);
DBT names its command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.integration.serve.test_trino_clients import Server
from tests.unit.serve.trino_lake import TABLES, SmallRouter

DBT = os.environ.get("DBT") or shutil.which("dbt")
pytestmark = pytest.mark.skipif(not DBT, reason="dbt was not found; DBT names its command")

FILES = {
    "dbt_project.yml": "name: shop\nversion: 1.0.0\nprofile: shop\n"
    "models: {shop: {+materialized: ephemeral}}\n",
    "models/paid.sql": "select id, total from {{ source('silver', 'orders') }} where paid\n",
    "models/shop.yml": """
sources:
  - name: silver
    database: lake
    tables:
      - name: orders
        columns:
          - {name: id, tests: [unique, not_null]}
          - {name: customer, tests: [not_null]}
models:
  - name: paid
    columns:
      - {name: id, tests: [not_null, {accepted_values: {values: [1], quote: false}}]}
""",
    "profiles.yml": "shop: {{target: dev, outputs: {{dev: {{type: trino, method: none, user: ann, "
    "host: 127.0.0.1, port: {port}, database: lake, schema: silver, http_scheme: http}}}}}}\n",
}


def test_a_project_is_debugged_run_tested_and_documented(tmp_path: Path) -> None:
    with Server(SmallRouter()) as server:
        for name, text in FILES.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            filled = text.format(port=server.port) if name == "profiles.yml" else text
            (tmp_path / name).write_text(filled)

        def dbt(*words: str) -> subprocess.CompletedProcess[str]:
            assert DBT is not None
            command = [DBT, "--no-send-anonymous-usage-stats", "--no-use-colors", *words]
            return subprocess.run(
                [*command, "--project-dir", tmp_path, "--profiles-dir", tmp_path],
                capture_output=True, text=True, timeout=120, cwd=tmp_path,
            )  # fmt: skip

        assert "All checks passed!" in dbt("debug").stdout
        ran = dbt("run")
        assert ran.returncode == 0, ran.stdout
        tested = dbt("test").stdout
        assert "PASS=4 WARN=0 ERROR=1" in tested  # one order has no customer
        assert "FAIL 1 source_not_null_silver_orders_customer" in tested
        assert dbt("docs", "generate", "--no-compile").returncode == 0
    catalog = json.loads((tmp_path / "target" / "catalog.json").read_text())
    columns = catalog["sources"]["source.shop.silver.orders"]["columns"]
    assert list(columns) == list(TABLES["silver.orders"])
    assert columns["total"]["type"] == "decimal(10,2)"
