"""dbt-duckdb plugin, named in our profile: gives dbt's DuckDB connections access to the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.duckdb.plugins import BasePlugin

from thermocline import config
from thermocline.engine import duck

if TYPE_CHECKING:
    import duckdb


class Plugin(BasePlugin):  # type: ignore[misc]
    """Prepares every database that dbt-duckdb opens, so that views of Iceberg tables work.

    The profile names only the project's folder: secrets are read from the settings here, and are
    never written down for dbt.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Read the lake's settings."""
        self._settings = config.load_settings(
            Path(plugin_config["project"]), plugin_config["profile"]
        )

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Load DuckDB extensions from their wheels, and set the lake's credentials."""
        duck.prepare_connection(conn, self._settings)
