"""Jars through the real Ivy of the PySpark wheel, from a repository that is a folder."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from thermocline.engine import jars
from thermocline.errors import BadInput, EngineUnavailable

SETTINGS = """
<ivysettings>
  <settings defaultResolver="folder"/>
  <resolvers>
    <filesystem name="folder">
      <artifact pattern="{pattern}"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""
LAYOUT = "[organisation]/[artifact]-[revision](-[classifier]).[ext]"


class Repository:
    """A Maven repository in a folder, and the environment of a user who works with it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "repository"
        self.settings = root / "ivysettings.xml"
        self.settings.write_text(SETTINGS.format(pattern=f"{self.root}/{LAYOUT}"))
        self.environ = {
            **os.environ,
            "THERMOCLINE_CACHE": str(root / "cache"),
            "THERMOCLINE_IVY_SETTINGS": str(self.settings),
        }
        self.kept = root / "cache" / "jars"

    def publish(self, coordinate: str) -> str:
        """Puts a jar in; returns its hash."""
        package = jars.Package.parse(coordinate)
        path = self.root / package.group / package.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr("name.txt", coordinate)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def published(self, coordinate: str) -> Path:
        package = jars.Package.parse(coordinate)
        return self.root / package.group / package.filename

    def names_kept(self) -> list[str]:
        return sorted(path.name for path in self.kept.rglob("*.jar"))


def name_in(jar: Path) -> str:
    with zipfile.ZipFile(jar) as opened:
        return opened.read("name.txt").decode()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_jars_are_fetched_in_the_order_asked_and_then_kept(repository: Repository) -> None:
    wanted = ["org.b:two:2.0", "org.a:one:1.0", "org.a:one:1.0:tests"]
    for coordinate in wanted:
        repository.publish(coordinate)
    told: list[str] = []

    paths = jars.resolve(wanted, told.append, repository.environ)

    assert [name_in(path) for path in paths] == wanted
    assert told[0] == "fetching 3 jars (only once)"
    assert told[-1].endswith("(3 of 3)")
    assert jars.find_missing(wanted, repository.environ) == []

    for coordinate in wanted:
        repository.published(coordinate).unlink()
    told.clear()
    assert jars.resolve(wanted, told.append, repository.environ) == paths
    assert told == []


def test_kept_jars_need_no_java_and_write_nothing(repository: Repository) -> None:
    jar = repository.kept / "org.a" / "one-1.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"kept")

    assert jars.resolve(["org.a:one:1.0"], environ=repository.environ) == [jar]
    assert [path.name for path in repository.kept.iterdir()] == ["org.a"]


def test_what_is_not_in_the_repository_is_named_and_the_rest_is_kept(
    repository: Repository,
) -> None:
    repository.publish("org.a:one:1.0")

    with pytest.raises(EngineUnavailable) as refused:
        jars.resolve(["org.a:one:1.0", "org.b:two:2.0"], environ=repository.environ)

    assert refused.value.cause == "Jars that Spark needs could not be fetched: org.b:two:2.0."
    assert refused.value.details["packages"] == ["org.b:two:2.0"]
    assert "org.b#two;2.0" in Path(refused.value.details["log"]).read_text()
    assert repository.names_kept() == ["one-1.0.jar"]


def test_offline_is_an_error_without_addresses(repository: Repository) -> None:
    with socket.socket() as closed:  # bound but not listening: connections are refused at once
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        repository.settings.write_text(
            '<ivysettings><settings defaultResolver="web"/><resolvers>'
            f'<ibiblio name="web" m2compatible="true" root="{address}"/>'
            "</resolvers></ivysettings>"
        )
        with pytest.raises(EngineUnavailable) as refused:
            jars.resolve(["org.a:one:1.0"], environ=repository.environ)

    assert "org.a:one:1.0" in refused.value.cause
    assert "127.0.0.1" not in str(refused.value)
    assert repository.names_kept() == []


def test_a_truncated_download_is_never_used(repository: Repository) -> None:
    repository.publish("org.a:one:1.0")
    published = repository.published("org.a:one:1.0")
    published.write_bytes(published.read_bytes()[:-30])

    with pytest.raises(EngineUnavailable, match=r"org\.a:one:1\.0"):
        jars.resolve(["org.a:one:1.0"], environ=repository.environ)

    assert repository.names_kept() == []


def test_a_pinned_jar_with_other_content_is_refused(repository: Repository) -> None:
    true_hash = repository.publish("org.a:one:1.0")
    pinned = {"org.a:one:1.0": "0" * 64}

    with pytest.raises(EngineUnavailable) as refused:
        jars.resolve(["org.a:one:1.0"], environ=repository.environ, hashes=pinned)

    assert refused.value.details == {"expected": "0" * 64, "actual": true_hash}
    assert repository.names_kept() == []


def test_two_processes_at_once_fetch_once(repository: Repository) -> None:
    repository.publish("org.a:one:1.0")
    leftover = repository.kept / ".fetch-of-a-killed-process"
    leftover.mkdir(parents=True)
    program = (
        "import json; from thermocline.engine import jars; told = [];"
        "paths = jars.resolve(['org.a:one:1.0'], told.append);"
        "print(json.dumps([told, [path.name for path in paths]]))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env=repository.environ,
        )
        for _ in range(2)
    ]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in both]

    assert [names for _, names in answers] == [["one-1.0.jar"]] * 2
    assert sorted(len(told) for told, _ in answers) == [0, 2]
    assert not leftover.exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"THERMOCLINE_CACHE": str(tmp_path / "file")}

    with pytest.raises(EngineUnavailable) as refused:
        jars.resolve(["org.a:one:1.0"], environ=environ)

    assert refused.value.cause == f"Jars cannot be stored in {tmp_path}/file/jars: Not a directory."
    assert "THERMOCLINE_CACHE" in refused.value.next_step


@pytest.mark.parametrize(
    "coordinate",
    ["postgresql", "org.a:one", "..:one:1.0", "org.a:one:1/0", 'org.a:one:1"0', "a:b:c:d:e", ""],
)
def test_what_is_not_a_coordinate_is_refused(coordinate: str) -> None:
    with pytest.raises(BadInput, match="not a Maven coordinate"):
        jars.resolve([coordinate])


def test_where_jars_are_kept(tmp_path: Path) -> None:
    everything = {"THERMOCLINE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}

    assert jars.cache_folder(everything) == Path("/a/jars")
    assert jars.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/thermocline/jars")
    assert jars.cache_folder({}) == Path.home() / ".cache" / "thermocline" / "jars"


def test_every_pin_has_its_hash() -> None:
    assert set(jars.SHA256) == {*jars.BASE, *jars.S3, *jars.KAFKA}
