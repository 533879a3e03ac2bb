"""The settings of a Kafka source: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.errors import ConfigError, ContractError
from thermocline.ingest.source import BatchLimits, Source, load_sources

GOOD = "kind: kafka\nservers: broker:9092\ntopic: orders\ntarget: bronze.raw_orders\n"


def load(folder: Path, text: str, name: str = "orders") -> Source:
    (folder / "sources").mkdir(exist_ok=True)
    (folder / "sources" / f"{name}.yaml").write_text(text)
    return load_sources(folder / "sources")[name]


def test_a_source_and_its_defaults(tmp_path: Path) -> None:
    source = load(tmp_path, GOOD + "batch: {rows: 10}\n")
    assert (source.kind, source.has_messages, source.limits) == (
        "kafka",
        True,
        BatchLimits(10, 256 << 20),
    )
    reach = source.connection
    assert (reach.servers, reach.topics, reach.format) == ("broker:9092", ("orders",), "json")
    assert reach.client_options() == {"bootstrap.servers": "broker:9092"}


def test_secrets_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(tmp_path, GOOD + "options: {sasl.jaas.config: {secret: KAFKA_LOGIN}}\n")
    assert "canary" not in repr(source)
    with pytest.raises(ConfigError, match="KAFKA_LOGIN is not set"):
        source.connection.client_options()
    monkeypatch.setenv("KAFKA_LOGIN", "canary-login")
    assert source.connection.client_options()["sasl.jaas.config"] == "canary-login"
    assert "canary" not in repr(source)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("options: {sasl.jaas.config: canary}\n", "options.sasl.jaas.config: holds a secret"),
        ("options: {ssl.key.password: canary}\n", "options.ssl.key.password: holds a secret"),
        ("options: {group.id: mine}\n", "options.group.id: cannot be set here"),
        ("registryOptions: {password: canary}\n", "registryOptions.password: holds a secret"),
        ("format: avro\n", "schema: is missing: avro needs one"),
        ("format: xml\n", '"xml" is not in this version'),
        ("format: avro\nregistry: file:///etc/passwd\n", "is no http(s) address"),
        ("format: avro\nschema: ../../etc/passwd\n", "is no file of the project"),
        ("topics: ['a/../b']\n", '"a/../b" is no name of a topic'),
        ("batch: {rows: 0}\n", "rows: 0 is not between"),
        ("batch: {row: 5}\n", 'did you mean "rows"?'),
        ("path: landing\n", 'unknown "path"'),
    ],
)
def test_what_is_refused_and_why(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ContractError) as told:
        load(tmp_path, GOOD + more)
    assert said in str(told.value)
    assert "canary" not in str(told.value)


def test_files_and_messages_do_not_share_a_table(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    with pytest.raises(ContractError, match="already takes files or messages"):
        load(tmp_path, "path: landing\ntarget: bronze.raw_orders\n", name="other")
