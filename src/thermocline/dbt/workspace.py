"""dbt's workspace: a private folder with a DuckDB database and a profile that points to it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import private_files
from thermocline.engine import duck
from thermocline.engine.duck_types import quote_identifier

if TYPE_CHECKING:
    import duckdb

    from thermocline.config import Settings

PROFILE = "thermocline"
DATABASE = "lake"
"""The database's name in dbt; a source may name it or omit it."""

_LOCK = "lock"
_THREADS = 4


class Workspace:
    """The folder of one run. Nothing in it is worth keeping: all results are in the lake."""

    def __init__(self, settings: Settings, folder: Path, schema: str, target: str) -> None:
        self.folder = folder
        self._settings = settings
        # dbt and Thermocline open one database: DuckDB refuses to open it with other options.
        self._options = duck.build_options(settings)
        self._schema = schema
        self._target = target

    def write_profile(self, databases: Collection[str] = ()) -> None:
        """Write dbt's profile. Other databases that the project names are attached, empty."""
        import yaml

        settings = self._settings
        output = {
            "type": "duckdb",
            "path": str(self._file(DATABASE)),
            "schema": self._schema,
            "threads": _THREADS,
            "config_options": self._options,
            "settings": {"TimeZone": "UTC"},
            "plugins": [
                {
                    "module": "thermocline.dbt.plugin",
                    "config": {"project": str(settings.project), "profile": settings.profile},
                }
            ],
            "attach": [{"path": str(self._file(name)), "alias": name} for name in databases],
        }
        profile = {PROFILE: {"target": self._target, "outputs": {self._target: output}}}
        (self.folder / "profiles.yml").write_text(yaml.safe_dump(profile), encoding="utf-8")

    def connect(self, databases: Collection[str] = ()) -> duckdb.DuckDBPyConnection:
        """Open the database with the same options as dbt."""
        import duckdb

        connection = duckdb.connect(str(self._file(DATABASE)), config=self._options)
        duck.prepare_connection(connection, self._settings)
        for name in databases:
            path = duck.quote_literal(str(self._file(name)))
            connection.execute(f"ATTACH IF NOT EXISTS {path} AS {quote_identifier(name)}")
        return connection

    def _file(self, database: str) -> Path:
        return self.folder / f"{database}.duckdb"


def quote_relation(parts: Iterable[str]) -> str:
    """Return a relation's full name, quoted for SQL."""
    return ".".join(quote_identifier(part) for part in parts)


@contextmanager
def open_workspace(settings: Settings, run: str, schema: str, target: str) -> Iterator[Workspace]:
    """Create the workspace of one run and remove it afterwards, along with those of killed runs."""
    place = private_files.ensure_folder(settings.project) / "dbt"
    place.mkdir(exist_ok=True)
    _remove_abandoned(place)
    # Under this name no other run removes it before it is locked.
    unlocked, folder = place / f".{run}", place / run
    unlocked.mkdir(mode=0o700)
    with (unlocked / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder)
        try:
            yield Workspace(settings, folder, schema, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that have ended: the system has released their locks."""
    for left in place.glob("[!.]*"):
        with suppress(OSError), (left / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
