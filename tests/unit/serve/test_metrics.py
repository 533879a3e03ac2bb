"""Metrics: all names exist, labels stay bounded, and dashboards use existing metrics only."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from tests.unit.serve.data_files import file, sums
from tests.unit.serve.fixed_router import NOW, SNAPSHOT, head, lake_state

from thermocline.maintain.service_status import ServiceStatus, TableStatus
from thermocline.serve.http.metrics import ENGINES, OUTCOMES, Metrics, RefreshLags

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "thermocline.json"
NAMES = {
    "shadow_warehouse_query_latency_seconds", "shadow_warehouse_queries_total",
    "iceberg_metadata_version", "s3_small_file_count", "thermocline_cache_hits_total",
    "thermocline_refresh_lag_seconds", "thermocline_mismatch_total", "thermocline_queue_depth",
    "thermocline_node_memory_bytes", "iceberg_small_files_count",
    "iceberg_partition_small_files_count", "iceberg_snapshot_count", "iceberg_read_amplification",
    "iceberg_file_group_delta_bytes", "thermocline_maintenance_queue_depth",
    "thermocline_maintenance_backlog_seconds", "thermocline_maintenance_report_timestamp_seconds",
    "thermocline_maintenance_success_timestamp_seconds",
}  # fmt: skip


def shown(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def families(metrics: Metrics) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", metrics.exposition().decode(), re.MULTILINE))


def test_every_name_is_there_before_anything_happened() -> None:
    metrics = Metrics()
    assert families(metrics) >= NAMES
    values = shown(metrics)
    for engine in ENGINES:
        assert values[f'shadow_warehouse_query_latency_seconds_count{{engine="{engine}"}}'] == 0
        for outcome in OUTCOMES:
            key = f'shadow_warehouse_queries_total{{engine="{engine}",outcome="{outcome}"}}'
            assert values[key] == 0
    assert values["thermocline_mismatch_total"] == 0


def test_answers_are_counted_and_timed_by_engine() -> None:
    metrics = Metrics()
    metrics.record_query("hot", "answered", 0.0004)
    metrics.record_query("hot", "fell_back", 0.003)
    metrics.record_query("cache", "answered", 0.001)
    metrics.record_query("none", "refused", 9.0)
    metrics.record_query("<script>", "failed", 1.0)
    values = shown(metrics)
    latency = "shadow_warehouse_query_latency_seconds"
    assert values[f'{latency}_bucket{{engine="hot",le="0.0005"}}'] == 1
    assert values[f'{latency}_bucket{{engine="hot",le="0.004"}}'] == 2
    assert values[f'{latency}_count{{engine="none"}}'] == 0
    assert values["thermocline_cache_hits_total"] == 1
    assert values['shadow_warehouse_queries_total{engine="none",outcome="failed"}'] == 1
    assert "script" not in metrics.exposition().decode()


def test_the_state_of_tables_comes_and_goes_with_them() -> None:
    metrics = Metrics()
    many = sums(*(file(5, 1) for _ in range(30)))
    metrics.update_state(lake_state(head(), head("gold.daily", files=many, hot=None)))
    values = shown(metrics)
    assert values['s3_small_file_count{table="silver.orders"}'] == 1
    assert values['s3_small_file_count{table="gold.daily"}'] == 30
    assert values['iceberg_metadata_version{table="silver.orders"}'] == 12
    assert values['thermocline_queue_depth{queue="compaction"}'] == 1
    assert 'thermocline_refresh_lag_seconds{table="gold.daily"}' not in values
    metrics.update_state(lake_state(head(), epoch=2))
    assert not [name for name in shown(metrics) if "gold.daily" in name]
    metrics.set_node_memory({"a": 7, "b": 8})
    metrics.set_node_memory({"b": 9})
    nodes = {n: v for n, v in shown(metrics).items() if n.startswith("thermocline_node")}
    assert nodes == {'thermocline_node_memory_bytes{node="b"}': 9}


def test_a_scrape_names_only_tables_that_its_caller_may_know() -> None:
    metrics = Metrics()
    odd = 'hr."pay\\roll'
    metrics.update_state(lake_state(head(), head("gold.daily"), head(odd)))
    assert {"gold.daily", "silver.orders"} <= set(tables_of(metrics.exposition()))
    assert len(set(tables_of(metrics.exposition()))) == 3
    assert set(tables_of(metrics.exposition(["gold.daily"]))) == {"gold.daily"}
    assert b"roll" not in metrics.exposition(["gold.daily", "silver.orders"])
    assert b"roll" in metrics.exposition([odd])
    assert b"thermocline_queue_depth" in metrics.exposition([])


def test_maintenance_is_shown_as_its_service_reported_it() -> None:
    reported: list[ServiceStatus] = []
    metrics = Metrics(maintenance=lambda: reported[-1] if reported else None)
    assert shown(metrics)["thermocline_maintenance_report_timestamp_seconds"] == 0
    table = TableStatus(40, 30, 20, 7_000, 12, 3.5)
    reported.append(
        ServiceStatus(
            NOW, "working", 60.0, NOW - timedelta(hours=1), 3, 9.5, {"silver.orders": table}
        )
    )
    values = shown(metrics)
    of = '{table="silver.orders"}'
    assert values["iceberg_small_files_count" + of] == 30
    assert values["iceberg_partition_small_files_count" + of] == 20
    assert values["iceberg_file_group_delta_bytes" + of] == 7_000
    assert values["iceberg_snapshot_count" + of] == 12
    assert values["iceberg_read_amplification" + of] == 3.5
    assert values["thermocline_maintenance_queue_depth"] == 3
    assert values["thermocline_maintenance_backlog_seconds"] == 9.5
    assert values["thermocline_maintenance_report_timestamp_seconds"] == NOW.timestamp()
    assert values["thermocline_maintenance_success_timestamp_seconds"] == NOW.timestamp() - 3600
    metrics.update_state(lake_state(head(), head("gold.daily")))
    assert b"iceberg_snapshot_count{" not in metrics.exposition(["gold.daily"])


def tables_of(text: bytes) -> list[str]:
    return re.findall(r'table="((?:[^"\\]|\\.)*)"', text.decode())


@pytest.mark.parametrize(
    ("name", "version"),
    [("00012-ab.metadata.json", 12), ("v7.metadata.json", 7), ("3-x.gz.metadata.json", 3),
     ("00001-x.metadata.json.gz", 1), ("current.json", 0)],
)  # fmt: skip
def test_the_version_is_in_the_name_of_the_metadata(name: str, version: int) -> None:
    metrics = Metrics()
    metrics.update_state(lake_state(head(metadata=f"s3://bucket/t/metadata/{name}")))
    assert shown(metrics)['iceberg_metadata_version{table="silver.orders"}'] == version


def test_mismatches_are_counted_once() -> None:
    found = [0]
    metrics = Metrics(mismatches=lambda: found[0])
    found[0] = 2
    metrics.exposition()
    assert shown(metrics)["thermocline_mismatch_total"] == 2
    found[0] = 3
    assert shown(metrics)["thermocline_mismatch_total"] == 3


def test_lag_is_how_long_a_commit_waited_for_a_node() -> None:
    lags = RefreshLags()
    old = head(committed_at=NOW - timedelta(days=10))
    first = lake_state(old)
    # A table that was committed days ago and is held at the first look did not lag for days.
    assert lags.update(first) == {"silver.orders": 0.0}
    new = replace(old, snapshot=SNAPSHOT + 1, committed_at=NOW + timedelta(seconds=5))
    behind = replace(lake_state(new, epoch=2), polled_at=NOW + timedelta(seconds=6))
    assert lags.update(behind)["silver.orders"] >= 1.0
    caught = replace(
        lake_state(new, epoch=3, hot_copies=SNAPSHOT + 1), polled_at=NOW + timedelta(seconds=6.5)
    )
    assert lags.update(caught) == {"silver.orders": 1.5}
    later = replace(caught, polled_at=NOW + timedelta(hours=1))
    assert lags.update(later) == {}, "it waits no longer"


# What watches them --------------------------------------------------------------------------------


def expressions() -> dict[str, str]:
    """Every query of the dashboard and of the rules, by where it stands."""
    found = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            found[f"rule {rule.get('alert') or rule['record']}"] = rule["expr"]
    return found


def test_every_metric_that_is_watched_exists() -> None:
    known = families(Metrics()) | {"shadow_warehouse_query_latency_seconds_bucket", "up"}
    recorded = {
        rule["record"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    words = r"\b(?:shadow_warehouse|thermocline|iceberg|s3)_\w+|\bengine:\w+:\w+|\bup\b"
    for place, expression in expressions().items():
        used = set(re.findall(words, expression))
        assert used, f"{place} watches nothing of ours"
        assert used <= known | recorded, f"{place}: {used - known - recorded}"
        for engine in re.findall(r'engine(?:=|!=|=~|!~)"([^"]+)"', expression):
            assert set(engine.split("|")) <= set(ENGINES), place
        for outcome in re.findall(r'outcome(?:=|!=|=~|!~)"([^"]+)"', expression):
            assert set(outcome.split("|")) <= set(OUTCOMES), place


def test_every_name_and_outcome_is_documented() -> None:
    text = (DEPLOY.parent / "docs" / "serving.md").read_text()
    assert [name for name in NAMES if f"`{name}" not in text] == []
    assert [outcome for outcome in OUTCOMES if f"`{outcome}`" not in text] == []


def test_the_dashboard_shows_what_it_must() -> None:
    titles = {panel["title"] for panel in json.loads(DASHBOARD.read_text())["panels"]}
    assert titles >= {
        "Success by engine", "Latency by engine", "Hot share", "Compaction queue depth"
    }  # fmt: skip
    watched = " ".join(expressions().values())
    assert [name for name in NAMES if name.removesuffix("_total") not in watched] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_rules_configuration_and_panels(tmp_path: Path) -> None:
    for what, path in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        done = subprocess.run(
            ["promtool", "check", what, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions().values())
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(panels)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    def series(name: str, values: str) -> dict[str, str]:
        return {"series": name, "values": values}

    queries = "shadow_warehouse_queries_total"
    quiet = [series(f'{queries}{{engine="hot",outcome="answered"}}', "0+600x60")]
    failing = [*quiet, series(f'{queries}{{engine="none",outcome="failed"}}', "0+6x60")]
    refused = [*quiet, series(f'{queries}{{engine="none",outcome="refused"}}', "0+600x60")]
    covered = [
        *quiet,
        series(f'{queries}{{engine="spark",outcome="failed"}}', "0+60x60"),
        series(f'{queries}{{engine="spark",outcome="answered"}}', "0x60"),
    ]
    lagging = [series('thermocline_refresh_lag_seconds{table="a.b"}', "30x60")]
    wrong = [series("thermocline_mismatch_total", "0x29 1x30")]
    overdue = [*quiet, series("thermocline_overdue_total", "0+60x60")]
    small = [series('iceberg_small_files_count{table="a.b"}', "150000x60")]
    many = [series('iceberg_small_files_count{table="a.b"}', "90000x60")]
    crowded = [series('iceberg_partition_small_files_count{table="a.b"}', "10001x60")]
    # Timestamps of the test begin at 0, and 40 minutes are not enough: the pass was earlier.
    stopped = [series("thermocline_maintenance_success_timestamp_seconds", "-9000x60")]
    passing = [series("thermocline_maintenance_success_timestamp_seconds", "0+60x60")]

    def case(given: list[dict[str, str]], alert: str, fires: int) -> dict[str, object]:
        check: dict[str, object] = {"eval_time": "40m", "alertname": alert}
        if fires:
            check["exp_alerts"] = [{"exp_labels": labels[alert]}]
        return {"interval": "1m", "input_series": given, "alert_rule_test": [check]}

    labels = {
        "ThermoclineQueriesFail": {"severity": "page"},
        "ThermoclineRefreshLags": {"severity": "ticket", "table": "a.b"},
        "ThermoclineMismatch": {"severity": "page"},
        "ThermoclineOverdue": {"severity": "ticket"},
        "ThermoclineEngineFails": {"severity": "ticket", "engine": "spark"},
        "IcebergCompactionBacklog": {"severity": "page", "table": "a.b"},
        "IcebergPartitionSmallFiles": {"severity": "ticket", "table": "a.b"},
        "ThermoclineMaintenanceStopped": {"severity": "ticket"},
    }
    cases = [
        case(quiet, "ThermoclineQueriesFail", 0), case(refused, "ThermoclineQueriesFail", 0),
        case(failing, "ThermoclineQueriesFail", 1), case(lagging, "ThermoclineRefreshLags", 1),
        case(covered, "ThermoclineQueriesFail", 0), case(covered, "ThermoclineEngineFails", 1),
        case(wrong, "ThermoclineMismatch", 1), case(quiet, "ThermoclineMismatch", 0),
        case(overdue, "ThermoclineOverdue", 1), case(quiet, "ThermoclineOverdue", 0),
        case(small, "IcebergCompactionBacklog", 1), case(many, "IcebergCompactionBacklog", 0),
        case(crowded, "IcebergPartitionSmallFiles", 1),
        case(stopped, "ThermoclineMaintenanceStopped", 1),
        case(passing, "ThermoclineMaintenanceStopped", 0),
    ]  # fmt: skip
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    cases_file = tmp_path / "cases.yml"
    cases_file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": cases}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(cases_file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
