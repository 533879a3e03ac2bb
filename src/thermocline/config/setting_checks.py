"""Checks of setting values: each returns what is wrong with a value, or None."""

from __future__ import annotations

from collections.abc import Callable

from thermocline.config import quantities


def check_spark_memory(value: str) -> str | None:
    """Check a size as Java spells it."""
    ok = value[:-1].isdecimal() and value[-1:].lower() in {"k", "m", "g", "t"}
    return None if ok else 'must be a size such as "2g" or "512m"'


def check_duckdb_memory(value: str) -> str | None:
    """Check a size as DuckDB spells it."""
    number = value.rstrip("KMGTiBkmgtb ")
    ok = number != value and number.replace(".", "", 1).isdecimal()
    return None if ok else 'must be a size such as "1GB" or "512MiB"'


def check_spark_master(value: str) -> str | None:
    """Check the address of a Spark master."""
    known = ("local", "local-cluster[", "spark://", "k8s://", "yarn")
    return None if value.startswith(known) else 'must be like "local[*]" or "spark://host:7077"'


def check_catalog_type(value: str) -> str | None:
    """Check the type of a catalog."""
    return None if value in {"sqlite", "postgres", "rest"} else "must be sqlite, postgres or rest"


def check_engine(value: str) -> str | None:
    """Check the choice of an engine."""
    return None if value in {"auto", "spark", "duckdb"} else "must be auto, spark or duckdb"


def check_worker_mode(value: str) -> str | None:
    """Check how workers divide a backfill."""
    known = {"auto", "off", "dag", "model", "partition"}
    return None if value in known else "must be auto, off, dag, model or partition"


def check_worker_location(value: str) -> str | None:
    """Check where workers run."""
    return None if value in {"local", "spark"} else "must be local or spark"


def check_at_least_one(value: int) -> str | None:
    """Check a count that must not be 0."""
    return None if value >= 1 else "must be at least 1"


def check_at_least_two(value: int) -> str | None:
    """Check a count of at least 2."""
    return None if value >= 2 else "must be at least 2"


def check_not_negative(value: int) -> str | None:
    """Check a count that may be 0."""
    return None if value >= 0 else "must be 0 or more"


def check_not_empty(value: str) -> str | None:
    """Check that a text is not empty."""
    return None if value.strip() else "must not be empty"


def check_http_url(value: str) -> str | None:
    """Check the scheme of a URL."""
    return None if value.startswith(("http://", "https://")) else "must begin with http(s)://"


def check_port(value: int) -> str | None:
    """Check a TCP port."""
    return None if 0 <= value <= 65535 else "must be between 0 and 65535 (0: any free port)"


def check_share(value: float) -> str | None:
    """Check a share of a whole."""
    return None if 0 <= value <= 1 else "must be between 0 and 1"


def check_size_or_zero(value: str) -> str | None:
    """Check a size that may be 0."""
    return None if value == "0" else check_size(value)


def check_size(value: str) -> str | None:
    """Check a size."""
    return _check_positive(quantities.parse_size, value)


def check_duration(value: str) -> str | None:
    """Check a duration."""
    return _check_positive(quantities.parse_duration, value)


def check_duration_or_zero(value: str) -> str | None:
    """Check a duration that may be 0s."""
    return None if value == "0s" else check_duration(value)


def _check_positive(read: Callable[[str], float], value: str) -> str | None:
    try:
        return None if read(value) > 0 else "must be more than 0"
    except ValueError as error:
        return str(error)


def check_jwt_algorithm(value: str) -> str | None:
    """Check the signature algorithm of JWTs."""
    return None if value in {"HS256", "RS256", "ES256"} else "must be HS256, RS256 or ES256"


def check_networks(value: list[str]) -> str | None:
    """Check a list of networks."""
    import ipaddress

    try:
        for each in value:
            ipaddress.ip_network(each)
    except ValueError:
        return 'must be networks such as "10.1.0.0/16"'
    return None


def check_switch(value: str) -> str | None:
    """Check a switch that may decide by itself."""
    return None if value in {"auto", "on", "off"} else "must be auto, on or off"


def check_hours_or_none(value: str) -> str | None:
    """Check hours of the day; empty: none."""
    try:
        quantities.parse_hours(value)
    except ValueError as error:
        return str(error)
    return None
