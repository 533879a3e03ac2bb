"""What lies in a landing folder, on local disk or on S3."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from thermocline.errors import BadInput, NotFound
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

    from thermocline.config import S3Settings, Settings
    from thermocline.ingest.source import Source

TEMPORARY = (".tmp", ".part", ".partial", ".inprogress", ".crdownload", ".swp")


@dataclass(frozen=True)
class LandingFile:
    """A file in a landing folder: its name there, and where it really is."""

    name: str
    size: int
    modified_ns: int
    location: str


@dataclass(frozen=True)
class Refusal:
    """A file that was not taken in, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{one_line(self.file)}: {self.reason}"


@dataclass
class Listing:
    """The files that may be taken in, those that may not, and how many still grow."""

    files: list[LandingFile] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    growing: int = 0


class Folder(Protocol):
    """Where files are listed, opened, and named for Spark."""

    def entries(self, refused: list[Refusal]) -> Iterator[LandingFile]:
        """Every file below the folder; what may not be followed goes to `refused`."""

    def open(self, file: LandingFile) -> BinaryIO:
        """The file's bytes, from the beginning."""

    def uri(self, file: LandingFile) -> str:
        """What Spark calls the file."""

    def unchanged(self, file: LandingFile) -> bool:
        """Whether the file is still the one that was listed."""


def folder_of(source: Source, settings: Settings) -> Folder:
    """The folder a source lands in."""
    if source.remote:
        return S3Folder(source.path, settings.s3)
    return LocalFolder(Path(source.path))


def list_landing(folder: Folder, source: Source) -> Listing:
    """The files of a source, in the order of their names.

    Hidden and temporary files are left out, files that changed within `settle` seconds are only
    counted, and what leads outside the folder is refused.
    """
    found = Listing()
    settled = time.time_ns() - int(source.settle * 1e9)
    for file in folder.entries(found.refused):
        if _is_hidden(file.name) or not source.wants(file.name):
            continue
        if source.settle and file.modified_ns > settled:
            found.growing += 1
            continue
        found.files.append(file)
    found.files.sort(key=lambda file: file.name)
    return found


def _is_hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith((".", "_")) for part in parts)
    return hidden or parts[-1].lower().endswith(TEMPORARY)


class LocalFolder:
    """A folder on local disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self, refused: list[Refusal]) -> Iterator[LandingFile]:
        """Files below the folder. A link counts as the file it leads to, if that is inside."""
        if not self._root.is_dir():
            raise NotFound(
                f"The landing folder {self._root} is not there.", "Make it, or mend the source."
            )
        yield from self._below(self._root, self._root.resolve(), refused)

    def _below(self, folder: Path, real: Path, refused: list[Refusal]) -> Iterator[LandingFile]:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path = Path(entry.path)
            name = path.relative_to(self._root).as_posix()
            if entry.is_symlink() and not _leads_inside(path, real):
                refused.append(Refusal(name, "a link that leads outside the landing folder"))
            elif entry.is_dir(follow_symlinks=False):
                yield from self._below(path, real, refused)
            elif not _is_utf8(name):
                refused.append(Refusal(ascii(name), "a name that is not UTF-8"))
            elif entry.is_file():
                found = entry.stat()
                place = os.path.realpath(path)
                yield LandingFile(name, found.st_size, found.st_mtime_ns, place)

    def open(self, file: LandingFile) -> BinaryIO:
        """The file's bytes. What became a link after it was listed is not followed."""
        handle = os.open(file.location, os.O_RDONLY | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadInput(f"{one_line(file.name)} is no longer a file.", "Deliver it again.")
        return os.fdopen(handle, "rb", buffering=0)

    def uri(self, file: LandingFile) -> str:
        """A plain path, with what Spark would take for a pattern escaped."""
        return glob_escaped(file.location)

    def unchanged(self, file: LandingFile) -> bool:
        """Whether size and time of change are as listed."""
        try:
            now = Path(file.location).lstat()
        except FileNotFoundError:
            return False
        return (now.st_size, now.st_mtime_ns) == (file.size, file.modified_ns)


class S3Folder:
    """A prefix in a bucket."""

    def __init__(self, root: str, settings: S3Settings) -> None:
        self._root = root.removeprefix("s3://").rstrip("/")
        self._settings = settings
        self._connected: S3FileSystem | None = None

    @property
    def _files(self) -> S3FileSystem:
        if self._connected is None:
            from pyarrow.fs import S3FileSystem

            s3 = self._settings
            scheme, _, host = (s3.endpoint or "").rpartition("://")
            self._connected = S3FileSystem(
                access_key=s3.access_key.reveal() if s3.access_key else None,
                secret_key=s3.secret_key.reveal() if s3.secret_key else None,
                region=s3.region,
                endpoint_override=host or None,
                scheme=scheme or "https",
                force_virtual_addressing=bool(s3.endpoint) and not s3.path_style,
            )
        return self._connected

    def entries(self, refused: list[Refusal]) -> Iterator[LandingFile]:
        """Objects below the prefix. A key with empty or dotted parts is refused."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self._files.get_file_info(FileSelector(self._root, recursive=True))
        except FileNotFoundError:
            raise NotFound(
                f"There is nothing at s3://{self._root}.", "Check the bucket and the prefix."
            ) from None
        except OSError as error:
            raise NotFound(
                f"s3://{self._root} cannot be listed: {one_line(str(error))[:200]}",
                "Check lake.s3.endpoint, the keys and the bucket.",
            ) from error
        for info in found:
            if info.type != FileType.File:
                continue
            name = info.path[len(self._root) + 1 :]
            if any(part in {"", ".", ".."} for part in name.split("/")):
                refused.append(Refusal(name, "a key with an empty or dotted part"))
            else:
                yield LandingFile(name, info.size or 0, info.mtime_ns or 0, info.path)

    def open(self, file: LandingFile) -> BinaryIO:
        """The object's bytes, streamed."""
        opened: BinaryIO = self._files.open_input_file(file.location)
        return opened

    def uri(self, file: LandingFile) -> str:
        """The object as Hadoop's S3 client names it."""
        return f"s3a://{glob_escaped(file.location)}"

    def unchanged(self, file: LandingFile) -> bool:
        """Whether size and time of change are as listed."""
        now = self._files.get_file_info(file.location)
        return (now.size, now.mtime_ns) == (file.size, file.modified_ns)


def glob_escaped(path: str) -> str:
    """A path in which no character is taken for a pattern."""
    return "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in path)


def _leads_inside(link: Path, root: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(root)


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
