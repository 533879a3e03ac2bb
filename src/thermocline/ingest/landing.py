"""List and open the files of a landing folder, on local disk or on S3."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from thermocline.errors import NotFound, Transient
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

    from thermocline.config import S3Settings, Settings
    from thermocline.ingest.source import Source

_HIDDEN = (".", "_")
TEMPORARY = (".tmp", ".part", ".partial", ".inprogress", ".crdownload", ".swp")


@dataclass(frozen=True)
class LandingFile:
    """A file in a landing folder: its name there, and its real location."""

    name: str
    size: int
    modified_ns: int
    location: str


@dataclass(frozen=True)
class Refusal:
    """A file that was refused, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{one_line(self.file)}: {self.reason}"


@dataclass
class Listing:
    """The files to ingest, the refused ones, and how many are still growing."""

    files: list[LandingFile] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    growing: int = 0


class FileUnavailable(Exception):
    """A file cannot be read now: it is skipped and tried again later.

    `reason` is empty if the file was removed, renamed or replaced after it was listed.
    """

    def __init__(self, file: LandingFile, reason: str = "") -> None:
        super().__init__(file.name, reason)
        self.file = file
        self.reason = reason


class ListingCache:
    """The names and folders on local disk that a process can skip in the next listings.

    A name is skipped while its inode is the same, and a folder while no entry was added or removed.
    Only a listing without a cache detects files that changed in place.
    """

    def __init__(self) -> None:
        self._skipped: dict[str, dict[str, int]] = {}
        self._listed: dict[tuple[str, str], int] = {}
        self._unchanged: dict[str, tuple[int, list[str]]] = {}

    def note_listed(self, folder: str, name: str, inode: int) -> None:
        """Record that a file was listed."""
        self._listed[folder, name] = inode

    def recheck(self, name: str) -> None:
        """List a file again next time."""
        folder, _, last = name.rpartition("/")
        self._listed.pop((f"{folder}/" if folder else "", last), None)

    def skip_listed(self) -> None:
        """Skip the other listed files from now on."""
        for (folder, name), inode in self._listed.items():
            self._skipped.setdefault(folder, {})[name] = inode
        self._listed.clear()

    def names(self, folder: str) -> Mapping[str, int]:
        """Return the skipped files of a folder with their inodes."""
        return self._skipped.get(folder, {})

    def unchanged_subfolders(self, folder: str, changed_ns: int) -> list[str] | None:
        """Return the subfolders of an unchanged folder whose files are all skipped, else None."""
        found = self._unchanged.get(folder)
        return found[1] if found and found[0] == changed_ns else None

    def mark_unchanged(self, folder: str, changed_ns: int, folders: list[str]) -> None:
        """Skip a folder while it is unchanged, unless it changed within the clock's granularity."""
        if time.time_ns() - changed_ns > _CLOCK_GRANULARITY_NS:
            self._unchanged[folder] = changed_ns, folders


_CLOCK_GRANULARITY_NS = 2_000_000_000
"""The coarsest modification time of a file system: a later change has a different time."""


class LandingFolder(Protocol):
    """Lists and opens files, and returns their URIs for Spark."""

    def entries(
        self, refused: list[Refusal], cache: ListingCache | None = None
    ) -> Iterator[LandingFile]:
        """Yield every file below the folder that is not skipped.

        Files that may not be followed are added to `refused`.
        """

    def open(self, file: LandingFile) -> BinaryIO:
        """Open the file."""

    def uri(self, file: LandingFile) -> str:
        """Return the file's URI for Spark."""

    def is_unchanged(self, file: LandingFile) -> bool:
        """Whether the file is unchanged since it was listed."""


def open_folder(source: Source, settings: Settings) -> LandingFolder:
    """Return the landing folder of a source."""
    if source.is_remote:
        return S3Folder(source.path, settings.s3)
    return LocalFolder(Path(source.path))


def list_landing(
    folder: LandingFolder, source: Source, cache: ListingCache | None = None
) -> Listing:
    """List the files of a source that are not skipped, ordered by name.

    Hidden and temporary files are left out. Files that changed within `settle` seconds are only
    counted. Links that lead outside the folder are refused.
    """
    found = Listing()
    settled = time.time_ns() - int(source.settle * 1e9)
    for file in folder.entries(found.refused, cache):
        if _is_hidden(file.name) or not source.matches(file.name):
            continue
        if source.settle and file.modified_ns > settled:
            found.growing += 1
            if cache is not None:
                cache.recheck(file.name)
            continue
        found.files.append(file)
    found.files.sort(key=lambda file: file.name)
    return found


def _is_hidden(name: str) -> bool:
    if name.lower().endswith(TEMPORARY):
        return True
    return name[0] in _HIDDEN or any(f"/{mark}" in name for mark in _HIDDEN)


class LocalFolder:
    """A folder on local disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(
        self, refused: list[Refusal], cache: ListingCache | None = None
    ) -> Iterator[LandingFile]:
        """Yield the files below the folder. A link counts as its target if that is inside."""
        if not self._root.is_dir():
            raise NotFound(
                f"The landing folder {self._root} is not there.", "Create it, or fix the source."
            )
        yield from self._walk("", str(self._root.resolve()), refused, cache or ListingCache())

    def _walk(
        self, below: str, real: str, refused: list[Refusal], cache: ListingCache
    ) -> Iterator[LandingFile]:
        """Yield the files of the folder `below` the root, whose real path is `real`.

        There may be hundreds of thousands of old files, so paths are resolved only for links.
        """
        try:
            changed_ns = (self._root / below).stat().st_mtime_ns  # before it is listed
            if cache.unchanged_subfolders(below, changed_ns) is None:
                entries = self._scan(below, cache.names(below))
        except FileNotFoundError:
            return  # it was just removed
        except OSError as error:
            name = below.rstrip("/") or str(self._root)
            refused.append(Refusal(name, f"it cannot be listed: {describe_error(error)}"))
            return
        if (folders := cache.unchanged_subfolders(below, changed_ns)) is not None:
            for name in folders:
                yield from self._walk(f"{below}{name}/", f"{real}/{name}", refused, cache)
            return
        folders, others = [], False
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name[0] in _HIDDEN:
                    continue
                folders.append(entry.name)
                deeper = below + entry.name + "/", f"{real}/{entry.name}"
                yield from self._walk(*deeper, refused, cache)
                continue
            others = True
            if (file := self._make_file(entry, below, real, refused)) is not None:
                if not entry.is_symlink():
                    cache.note_listed(below, entry.name, entry.inode())
                yield file
        if not others:
            cache.mark_unchanged(below, changed_ns, folders)

    def _scan(self, below: str, known: Mapping[str, int]) -> list[os.DirEntry[str]]:
        with os.scandir(self._root / below) as entries:
            return sorted(
                (e for e in entries if known.get(e.name) != e.inode()), key=lambda e: e.name
            )

    def _make_file(
        self, entry: os.DirEntry[str], below: str, real: str, refused: list[Refusal]
    ) -> LandingFile | None:
        name, place = below + entry.name, f"{real}/{entry.name}"
        if entry.is_symlink():
            place = os.path.realpath(entry.path)
            if not Path(place).is_relative_to(self._root.resolve()):
                refused.append(Refusal(name, "a link that leads outside the landing folder"))
                return None
        if not _is_utf8(name):
            refused.append(Refusal(ascii(name), "a name that is not UTF-8"))
            return None
        try:
            if not entry.is_file():
                return None
            found = entry.stat()
        except FileNotFoundError:
            return None
        except OSError as error:  # such as a link to itself
            refused.append(Refusal(name, f"it cannot be read: {describe_error(error)}"))
            return None
        return LandingFile(name, found.st_size, found.st_mtime_ns, place)

    def open(self, file: LandingFile) -> BinaryIO:
        """Open the file. Do not follow a link or wait for a pipe that replaced it."""
        try:
            handle = os.open(file.location, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise FileUnavailable(
                file, "" if error.errno in _GONE_ERRORS else describe_error(error)
            ) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileUnavailable(file)
        return os.fdopen(handle, "rb", buffering=0)

    def uri(self, file: LandingFile) -> str:
        """Return the path with glob characters escaped for Spark."""
        return escape_glob(file.location)

    def is_unchanged(self, file: LandingFile) -> bool:
        """Whether size and time of change are as listed."""
        try:
            now = Path(file.location).lstat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (file.size, file.modified_ns)


class S3Folder:
    """A prefix in a bucket."""

    def __init__(self, root: str, settings: S3Settings) -> None:
        self._root = root.removeprefix("s3://").rstrip("/")
        self._settings = settings
        self._connected: S3FileSystem | None = None

    @property
    def _file_system(self) -> S3FileSystem:
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

    def entries(
        self, refused: list[Refusal], cache: ListingCache | None = None
    ) -> Iterator[LandingFile]:
        """Yield all objects below the prefix. A key with empty or dotted parts is refused."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self._file_system.get_file_info(FileSelector(self._root, recursive=True))
        except FileNotFoundError:
            raise NotFound(
                f"There is nothing at s3://{self._root}.", "Check the bucket and the prefix."
            ) from None
        except OSError as error:
            raise Transient(
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
        """Open the object as a stream."""
        try:
            opened: BinaryIO = self._file_system.open_input_file(file.location)
        except FileNotFoundError as error:
            raise FileUnavailable(file) from error
        except OSError as error:
            raise FileUnavailable(file, describe_error(error)) from error
        return opened

    def uri(self, file: LandingFile) -> str:
        """Return the object's URI for Hadoop's S3 client."""
        return f"s3a://{escape_glob(file.location)}"

    def is_unchanged(self, file: LandingFile) -> bool:
        """Whether size and time of change are as listed."""
        now = self._file_system.get_file_info(file.location)
        return (now.size, now.mtime_ns) == (file.size, file.modified_ns)


_GONE_ERRORS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}


def describe_error(error: OSError) -> str:
    """Return the system's message in one line."""
    return one_line(error.strerror or str(error))[:200]


def escape_glob(path: str) -> str:
    """Escape the glob characters of a path."""
    return "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in path)


def _is_utf8(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
