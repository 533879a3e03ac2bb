"""The settings of a project, read once by the entry point and frozen.

Later layers win: defaults, `thermocline.toml`, its `[profile.NAME]`, `secrets.toml`, the
environment. Every value records the layer it came from. Reading settings has no side effect: it
creates no folder and starts no engine, and no secret ever appears in a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from thermocline.config.definitions import BY_KEY, SETTINGS, Setting
from thermocline.config.lake_addresses import resolve_locations
from thermocline.config.layers import PROJECT_FILE, SECRETS_FILE, is_setting, read_layers
from thermocline.config.settings import (
    ApiSettings,
    CatalogSettings,
    DuckDBSettings,
    JwtSettings,
    MaintainSettings,
    QuarantineSettings,
    RetentionSettings,
    S3Settings,
    Secret,
    ServeSettings,
    Settings,
    SparkSettings,
    TransformSettings,
    TrinoSettings,
    WorkersSettings,
)
from thermocline.errors import ConfigError

__all__ = [
    "PROFILE_VARIABLE",
    "PROJECT_FILE",
    "SECRETS_FILE",
    "SETTINGS",
    "ApiSettings",
    "CatalogSettings",
    "DuckDBSettings",
    "JwtSettings",
    "QuarantineSettings",
    "RetentionSettings",
    "S3Settings",
    "Secret",
    "ServeSettings",
    "Setting",
    "Settings",
    "SparkSettings",
    "TransformSettings",
    "TrinoSettings",
    "WorkersSettings",
    "find_project",
    "is_setting",
    "load_settings",
]

PROFILE_VARIABLE = "THERMOCLINE_PROFILE"


def find_project(start: Path) -> Path:
    """Return the nearest folder at or above `start` that holds a thermocline.toml."""
    start = start.expanduser().absolute()
    for folder in (start, *start.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder
    raise ConfigError(
        f"No {PROJECT_FILE} in {start} or any folder above it.",
        "Make a project with `thermo init`, or name one with --project DIR.",
        folder=str(start),
    )


def load_settings(
    project: Path, profile: str | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of the project in this folder. Raises ConfigError with file and key."""
    project = project.expanduser().absolute()
    if not (project / PROJECT_FILE).is_file():
        raise ConfigError(
            f"No {PROJECT_FILE} in {project}.",
            "Make a project with `thermo init`, or name one with --project DIR.",
            folder=str(project),
        )
    profile = (profile if profile is not None else environ.get(PROFILE_VARIABLE)) or None
    values: dict[str, Any] = {setting.key: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, "default")
    for origin, key, value in read_layers(project, profile, environ):
        setting = BY_KEY[key]
        if setting.kind is dict:
            values[key] = {**values[key], **value}
            origins.update({f"{key}.{name}": origin for name in value})
        else:
            values[key] = value
        origins[key] = origin
    resolve_locations(project, values, origins)
    return _build_settings(project, profile, values, origins)


def _build_settings(
    project: Path, profile: str | None, values: dict[str, Any], origins: dict[str, str]
) -> Settings:
    def section(prefix: str) -> dict[str, Any]:
        found = {key.removeprefix(prefix): value for key, value in values.items()}
        return {
            name: MappingProxyType(value) if isinstance(value, dict) else value
            for name, value in found.items()
            if "." not in name
        }

    return Settings(
        project=project,
        profile=profile,
        **section("lake."),
        catalog=CatalogSettings(**section("lake.catalog.")),
        s3=S3Settings(**section("lake.s3.")),
        retention=RetentionSettings(**section("lake.retention.")),
        maintain=MaintainSettings(**section("maintain.")),
        spark=SparkSettings(**section("engine.spark.")),
        duckdb=DuckDBSettings(**section("engine.duckdb.")),
        transform=TransformSettings(**section("transform.")),
        workers=WorkersSettings(**section("workers.")),
        api=ApiSettings(**section("ingest.api.")),
        quarantine=QuarantineSettings(**section("ingest.quarantine.")),
        serve=ServeSettings(**section("serve.")),
        trino=TrinoSettings(**section("serve.trino.")),
        jwt=JwtSettings(**section("serve.jwt.")),
        origins=MappingProxyType(origins),
        warnings=_find_warnings(project / SECRETS_FILE),
    )


def _find_warnings(secrets: Path) -> tuple[str, ...]:
    if secrets.is_file() and secrets.stat().st_mode & 0o004:
        return (f"{secrets.name} can be read by everybody; run `chmod 600 {secrets}`.",)
    return ()
