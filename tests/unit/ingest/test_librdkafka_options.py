"""Options of the Java client, and which of them librdkafka is given."""

from __future__ import annotations

import pytest

from thermocline.ingest.kafka.librdkafka_options import to_librdkafka_options

SERVERS = {"bootstrap.servers": "a:9092,b:9092"}
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="reader" password="p=;\'s";'
)
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}


def test_what_surely_means_the_same_is_translated() -> None:
    assert to_librdkafka_options(SERVERS) == {**SERVERS, "security.protocol": "PLAINTEXT"}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert to_librdkafka_options({**SERVERS, **login, "sasl.jaas.config": PLAIN}) == {
        **SERVERS, **login, "sasl.username": "reader", "sasl.password": "p=;'s",
    }  # fmt: skip
    both = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    assert to_librdkafka_options({**SERVERS, **both, **TRUST, "sasl.jaas.config": SCRAM}) == {
        **SERVERS, **both, "sasl.username": "reader", "sasl.password": "p=;'s",
        "ssl.ca.location": "/ca.pem",
    }  # fmt: skip
    secure = {"security.protocol": "SSL"}
    assert to_librdkafka_options({**SERVERS, **secure, **TRUST}) == {
        **SERVERS, **secure, "ssl.ca.location": "/ca.pem",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"fetch.max.bytes": "1"},
        {"security.protocol": "plaintext"},
        {"security.protocol": "SSL"},
        {"security.protocol": "SSL", **TRUST, "ssl.truststore.type": "JKS"},
        {"security.protocol": "SSL", **TRUST, "ssl.truststore.password": "x"},
        {"security.protocol": "SSL", **TRUST, "ssl.endpoint.identification.algorithm": ""},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": PLAIN},
    ],
)
def test_any_other_option_is_left_to_the_java_client(options: dict[str, str]) -> None:
    assert to_librdkafka_options({**SERVERS, **options}) is None


@pytest.mark.parametrize(
    "line",
    [
        SCRAM,
        PLAIN.replace("p=", "p\\\\"),
        PLAIN.replace("required", "optional"),
        PLAIN.replace(";", ""),
        PLAIN[:-1] + ' serviceName="kafka";',
        PLAIN + PLAIN,
        PLAIN.replace("Plain", "MyPlain"),
    ],
)
def test_a_login_of_another_form_is_left_to_the_java_client(line: str) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert to_librdkafka_options({**SERVERS, **login, "sasl.jaas.config": line}) is None
