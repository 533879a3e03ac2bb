"""Resolve the warehouse path and the catalog address, and take passwords out of the address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from thermocline.config.settings import Secret
from thermocline.errors import ConfigError


def split_uri(uri: str) -> tuple[str, str | None, str | None]:
    """Return the URI without user and password, the user, and the password."""
    from urllib.parse import unquote, urlsplit, urlunsplit

    try:
        parts = urlsplit(uri)
        user, password = parts.username, parts.password
        is_ambiguous = "@" in parts.path + parts.query + parts.fragment
    except ValueError:
        is_ambiguous = True
    if is_ambiguous:
        # The path may contain part of a password: the message must not show any of it.
        raise ConfigError(
            "`lake.catalog.uri` cannot be read as an address.",
            "Write @ / ? # [ ] in a user or password as %40 %2F %3F %23 %5B %5D.",
            key="lake.catalog.uri",
        )
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, unquote(user) if user else None, unquote(password) if password else None


def is_secret_name(name: str) -> bool:
    """Return whether a property of this name holds a secret by a known naming convention."""
    normalized = name.lower().replace(".", "-").replace("_", "-")
    endings = ("password", "passwd", "secret", "token", "credential", "access-key", "secret-key")
    return normalized.endswith((*endings, "access-key-id", "api-key", "authorization"))


def resolve_locations(project: Path, values: dict[str, Any], origins: dict[str, str]) -> None:
    """Make the warehouse and the catalog address absolute; store the password separately."""
    values["lake.warehouse"] = warehouse = _resolve_warehouse(project, values["lake.warehouse"])
    kind, uri = values["lake.catalog.type"], values["lake.catalog.uri"]
    if kind == "sqlite":
        folder = project if warehouse.startswith("s3://") else Path(warehouse)
        file = (uri or "catalog.db").removeprefix("sqlite:///")
        if "://" in file:
            raise ConfigError(
                "`lake.catalog.uri` of a sqlite catalog must be a file.",
                "Set [lake.catalog] type to postgres or rest, or give a path as uri.",
                key="lake.catalog.uri",
            )
        path = Path(file).expanduser()
        values["lake.catalog.uri"] = str((project if uri else folder) / path)
        return
    scheme = "postgresql://" if kind == "postgres" else "http"
    if uri is None or not uri.startswith((scheme, "postgres://" if kind == "postgres" else scheme)):
        problem = f"must begin with {scheme}" if uri else "is missing"
        raise ConfigError(
            f"`lake.catalog.uri` of a {kind} catalog {problem}.",
            "Set uri under [lake.catalog] in thermocline.toml, or THERMOCLINE_LAKE__CATALOG__URI.",
            key="lake.catalog.uri",
        )
    if any(is_secret_name(part.partition("=")[0]) for part in uri.partition("?")[2].split("&")):
        raise ConfigError(
            "`lake.catalog.uri` holds a secret after its question mark.",
            "Give the password as THERMOCLINE_LAKE__CATALOG__PASSWORD or in secrets.toml.",
            key="lake.catalog.uri",
        )
    bare, user, password = split_uri(uri)
    for key, value in (
        ("lake.catalog.user", user),
        ("lake.catalog.password", Secret(password) if password else None),
    ):
        if values[key] is None and value is not None:
            values[key], origins[key] = value, origins["lake.catalog.uri"]
    if kind == "postgres":
        from urllib.parse import quote

        login = values["lake.catalog.user"]
        start = f"postgresql://{quote(login, safe='')}@" if login else "postgresql://"
        bare = start + bare.partition("://")[2]
    values["lake.catalog.uri"] = bare


def _resolve_warehouse(project: Path, location: str) -> str:
    if location.startswith(("s3://", "s3a://")):
        return "s3://" + location.partition("://")[2].rstrip("/")
    scheme, separator, path = location.partition("://")
    if separator and scheme != "file":
        raise ConfigError(
            f"`lake.warehouse` begins with {scheme}://, which is not supported.",
            "Use a folder or s3://bucket/prefix.",
            key="lake.warehouse",
        )
    folder = os.path.normpath(project / Path(path if separator else location).expanduser())
    if Path(folder).as_uri() != f"file://{folder}":
        raise ConfigError(
            f"The warehouse path has a space or another character that URIs escape: {folder}",
            "Move the project, or set lake.warehouse to a path of letters, digits, - _ and . only.",
            key="lake.warehouse",
        )
    return folder
