"""Translate a source's options from Kafka's Java client to librdkafka.

Only options that certainly mean the same are translated. With any other option there is no
translation, and Spark reads the source with the Java client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The usual one-line form. A backslash would start an escape, so none is allowed.
_LOGIN = re.compile(
    r"\s*org\.apache\.kafka\.common\.security\.(?P<kind>plain\.Plain|scram\.Scram)LoginModule\s+"
    r'required\s+username="(?P<user>[^"\\]*)"\s+password="(?P<password>[^"\\]*)"\s*;\s*'
)
_MECHANISMS = {
    "PLAIN": "plain.Plain", "SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram",
}  # fmt: skip
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_KNOWN_OPTIONS = {
    "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config",
    "ssl.truststore.type", "ssl.truststore.location",
}  # fmt: skip


def to_librdkafka_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options for librdkafka, or None if one has no certain translation."""
    protocol = options.get("security.protocol", "PLAINTEXT")
    if not set(options) <= _KNOWN_OPTIONS or protocol not in _PROTOCOLS:
        return None
    found = {"bootstrap.servers": options["bootstrap.servers"], "security.protocol": protocol}
    parts = [_translate_login(options)] if protocol.startswith("SASL") else []
    parts += [_translate_trust(options)] if protocol.endswith("SSL") else []
    for part in parts:
        if part is None:
            return None
        found |= part
    return found


def _translate_login(options: Mapping[str, str]) -> dict[str, str] | None:
    mechanism = options.get("sasl.mechanism", "")
    login = _LOGIN.fullmatch(options.get("sasl.jaas.config", ""))
    if login is None or _MECHANISMS.get(mechanism) != login["kind"]:
        return None
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": login["user"],
        "sasl.password": login["password"],
    }


def _translate_trust(options: Mapping[str, str]) -> dict[str, str] | None:
    """Translate a truststore file. By default Java and librdkafka trust different authorities."""
    if options.get("ssl.truststore.type") != "PEM" or "ssl.truststore.location" not in options:
        return None
    return {"ssl.ca.location": options["ssl.truststore.location"]}
