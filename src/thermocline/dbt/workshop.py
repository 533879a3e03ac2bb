"""Where dbt works: a private folder with a DuckDB database and a profile that leads to it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import private
from thermocline.engine import duck
from thermocline.engine.duck_types import quoted

if TYPE_CHECKING:
    import duckdb

    from thermocline.config import Settings

PROFILE = "thermocline"
DATABASE = "lake"
"""What dbt calls the database; a source may name it or not."""

_LOCK = "lock"
_THREADS = 4


class Workshop:
    """One run's folder. Everything in it may be lost: what counts is in the lake."""

    def __init__(self, settings: Settings, folder: Path, schema: str, target: str) -> None:
        self.folder = folder
        self._settings = settings
        # One database, opened by dbt and by us: DuckDB refuses it to who says other options.
        self._options = duck.options(settings)
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
        """Open the database as dbt does."""
        import duckdb

        connection = duckdb.connect(str(self._file(DATABASE)), config=self._options)
        duck.prepare(connection, self._settings)
        for name in databases:
            path = duck.literal(str(self._file(name)))
            connection.execute(f"ATTACH IF NOT EXISTS {path} AS {quoted(name)}")
        return connection

    def _file(self, database: str) -> Path:
        return self.folder / f"{database}.duckdb"


def relation(parts: Iterable[str]) -> str:
    """A relation's full name as SQL reads it."""
    return ".".join(quoted(part) for part in parts)


@contextmanager
def opened(settings: Settings, run: str, schema: str, target: str) -> Iterator[Workshop]:
    """A workshop for one run, which is gone afterwards, as are those of runs that were killed."""
    place = private.folder(settings.project) / "dbt"
    place.mkdir(exist_ok=True)
    _sweep(place)
    # Under this name nobody sweeps it before it is locked.
    unlocked, folder = place / f".{run}", place / run
    unlocked.mkdir(mode=0o700)
    with (unlocked / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder)
        try:
            yield Workshop(settings, folder, schema, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove the folders of processes that are gone: the system has taken back their locks."""
    for left in place.glob("[!.]*"):
        with suppress(OSError), (left / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
