"""The servers that other tests stand on are real: they keep data, and they refuse strangers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.servers import settings
from tests.servers.postgres import Postgres
from tests.servers.rest_catalog import RestCatalog
from tests.servers.s3 import S3
from tests.servers.spark_cluster import SparkCluster

from thermocline.engine import jars


def test_postgres_keeps_what_it_is_given_and_checks_passwords(postgres_server: Postgres) -> None:
    import psycopg2

    postgres_server.create_database("smoke")
    with contextlib.closing(postgres_server.connect("smoke")) as one, one.cursor() as cursor:
        cursor.execute("create table t (price numeric(9, 2), note text)")
        cursor.execute("insert into t values (%s, %s)", ("12.30", "größer"))
    with contextlib.closing(postgres_server.connect("smoke")) as other, other.cursor() as cursor:
        cursor.execute("select price::text, note from t")
        assert cursor.fetchall() == [("12.30", "größer")]
        cursor.execute("show listen_addresses")
        assert cursor.fetchone() == ("127.0.0.1",)

    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        postgres_server.connect(password="guessed")


def test_two_postgres_lakes_have_two_databases(postgres_server: Postgres, tmp_path: Path) -> None:
    one, other = (settings.postgres_lake_settings(postgres_server, tmp_path) for _ in range(2))

    assert one["THERMOCLINE_LAKE__CATALOG__URI"] != other["THERMOCLINE_LAKE__CATALOG__URI"]
    assert postgres_server.password not in one["THERMOCLINE_LAKE__CATALOG__URI"]


def test_rest_catalog_holds_a_table_for_pyiceberg(rest_catalog_server: RestCatalog) -> None:
    import pyarrow as pa
    from pyiceberg.catalog.rest import RestCatalog as Client

    settings.rest_lake_settings(rest_catalog_server)
    writer = Client("writer", uri=rest_catalog_server.uri)
    writer.create_namespace("silver")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]})
    writer.create_table("silver.orders", rows.schema).append(rows)

    reader = Client("reader", uri=rest_catalog_server.uri)
    table = reader.load_table("silver.orders")
    assert reader.list_tables("silver") == [("silver", "orders")]
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    assert table.location() == f"file://{rest_catalog_server.warehouse}/silver/orders"

    settings.rest_lake_settings(rest_catalog_server)
    assert reader.list_namespaces() == []


def test_rest_catalog_commits_several_tables_or_none(rest_catalog_server: RestCatalog) -> None:
    import pyarrow as pa
    from pyiceberg.catalog.rest import RestCatalog as Client

    settings.rest_lake_settings(rest_catalog_server)
    client = Client("client", uri=rest_catalog_server.uri)
    client.create_namespace("gold")
    schema = pa.schema([("id", pa.int64())])
    one, other = (client.create_table(f"gold.{name}", schema) for name in ("one", "other"))

    def change(name: str, uuid: object, run: str) -> dict[str, object]:
        return {
            "identifier": {"namespace": ["gold"], "name": name},
            "requirements": [{"type": "assert-table-uuid", "uuid": str(uuid)}],
            "updates": [{"action": "set-properties", "updates": {"run": run}}],
        }

    def runs() -> list[str | None]:
        tables = (client.load_table(f"gold.{name}") for name in ("one", "other"))
        return [table.properties.get("run") for table in tables]

    def commit(*changes: dict[str, object]) -> int:
        return rest_catalog_server.post("v1/transactions/commit", {"table-changes": list(changes)})

    uuid_one, uuid_other = one.metadata.table_uuid, other.metadata.table_uuid
    assert commit(change("one", uuid_one, "1"), change("other", uuid_other, "1")) in (200, 204)
    assert runs() == ["1", "1"]

    assert commit(change("one", uuid_one, "2"), change("other", uuid_one, "2")) == 409
    assert runs() == ["1", "1"]


def test_s3_keeps_objects_and_refuses_a_wrong_secret(s3_server: S3) -> None:
    assert s3_server.put("a/b c.txt", "größer".encode()) == 200
    assert s3_server.get("a/b c.txt").decode() == "größer"

    assert s3_server.as_user(s3_server.access_key, "guessed").put("a/b c.txt", b"mine") == 403
    assert s3_server.as_user("stranger", s3_server.secret_key).put("a/b c.txt", b"mine") == 403
    assert s3_server.get("a/b c.txt").decode() == "größer"


def test_s3_writes_only_once_when_asked_to(s3_server: S3) -> None:
    only_new = {"If-None-Match": "*"}

    assert s3_server.put("once", b"first", **only_new) == 200
    assert s3_server.put("once", b"second", **only_new) == 412
    assert s3_server.get("once") == b"first"


def test_the_pinned_aws_parts_are_of_the_sdk_in_icebergs_bundle() -> None:
    bundle = jars.resolve(jars.S3)[0]

    with zipfile.ZipFile(bundle) as opened:
        properties = opened.read("META-INF/maven/software.amazon.awssdk/s3/pom.properties")

    assert f"version={jars.AWS_SDK}\n" in properties.decode().replace("\r\n", "\n")


# One Spark session a process, and pytest's may exist already: jobs run in a process of their own.
JOB = """
import json, os, sys
from pyspark.sql import SparkSession
from thermocline.engine import jars

given = json.loads(sys.argv[1])
builder = SparkSession.builder.config("spark.ui.enabled", "false")
for key, value in given["conf"].items():
    builder = builder.config(key, value)
if given["packages"]:
    paths = jars.resolve(given["packages"])
    builder = builder.config("spark.jars", ",".join(map(str, paths)))
spark = builder.getOrCreate()
print("RESULT" + json.dumps(eval(given["expression"])))
spark.stop()
"""


def run_job(expression: str, conf: dict[str, str], packages: tuple[str, ...] = ()) -> object:
    """What `expression` over `spark` gives, in a new process with that configuration."""
    given = json.dumps({"expression": expression, "conf": conf, "packages": packages})
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", JOB, given],
        capture_output=True,
        text=True,
        timeout=240,
        env=environ,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results, done.stderr[-3000:]
    return json.loads(results[0].removeprefix("RESULT"))


def test_spark_reads_landing_files_from_s3(s3_server: S3) -> None:
    s3_server.put("smoke/one.jsonl", '{"id": 1, "city": "Köln"}\n'.encode())
    s3_server.put("smoke/two.jsonl", b'{"id": 2}\n')
    conf = {
        "spark.master": "local[1]",
        "spark.hadoop.fs.s3a.endpoint": s3_server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": s3_server.region,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": s3_server.access_key,
        "spark.hadoop.fs.s3a.secret.key": s3_server.secret_key,
    }
    rows = (
        "[[tuple(row) for row in spark.read.schema('id long, city string')"
        f".json('s3a://{s3_server.bucket}/smoke').orderBy('id').collect()],"
        f" [row.value for row in spark.read.text('s3a://{s3_server.bucket}/smoke/two.jsonl')"
        ".collect()]]"
    )

    assert run_job(rows, conf, jars.S3) == [[[1, "Köln"], [2, None]], ['{"id": 2}']]


def test_a_job_runs_python_on_both_workers_of_the_cluster(spark_cluster: SparkCluster) -> None:
    conf = {"spark.master": spark_cluster.master, "spark.executor.memory": "512m"}
    conf |= {"spark.app.name": "smoke"}
    conf |= {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}  # both, before it begins
    # An executor works in a folder of its worker's; tasks of a third of a second need both.
    workers = (
        "sorted(set(spark.sparkContext.parallelize(range(8), 8)"
        ".map(lambda n: (__import__('time').sleep(0.3), __import__('os').getcwd())[1])"
        ".map(lambda folder: folder.split('/')[-3]).collect()))"
    )

    assert run_job(workers, conf) == ["worker-1", "worker-2"]
    ended = spark_cluster.status()["completedapps"]
    assert [app["state"] for app in ended if app["name"] == "smoke"] == ["FINISHED"]
