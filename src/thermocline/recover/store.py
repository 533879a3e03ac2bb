"""Files by their location, on local disk or on S3: what is there, read, written whole, copied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.lake.place import bare, below

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_PART = ".part"
"""What a file is called on local disk until it is whole."""
_PIECE = 8 << 20


class Store:
    """Files of one lake, wherever they are. A file that is there is whole."""

    def __init__(self, io: FileIO) -> None:
        self.io = io

    def folder(self, location: str) -> Folder:
        """What is in a folder now, asked at once."""
        return Folder(self, location, dict(self._listed(bare(location))))

    def size(self, location: str) -> int | None:
        """The size of a file; None where there is none that can be read."""
        path = _local(location)
        if path is not None:
            try:
                return path.stat().st_size if path.is_file() else None
            except OSError:
                return None
        try:
            return len(self.io.new_input(location))
        except OSError:
            return None

    def read(self, location: str) -> bytes:
        """The bytes of a file."""
        path = _local(location)
        if path is not None:
            return path.read_bytes()
        with self.io.new_input(location).open() as stream:
            return bytes(stream.read())

    def write(self, location: str, content: bytes) -> None:
        """Write a file, in the place of one of the same name."""
        path = _local(location)
        if path is None:
            with self.io.new_output(location).create(overwrite=True) as stream:
                stream.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _whole(path).write_bytes(content)
        _whole(path).replace(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file from one place to another."""
        there, here = _local(source), _local(target)
        if here is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
        if there is not None and here is not None:
            shutil.copyfile(there, _whole(here))
        elif here is not None:
            with self.io.new_input(source).open() as stream, _whole(here).open("wb") as out:
                while piece := stream.read(_PIECE):
                    out.write(piece)
        else:
            with (
                self.io.new_input(source).open() as stream,
                self.io.new_output(target).create(overwrite=True) as sink,
            ):
                while piece := stream.read(_PIECE):
                    sink.write(piece)
        if here is not None:
            _whole(here).replace(here)

    def delete(self, location: str) -> None:
        """Remove a file, if it is there and can be removed."""
        with suppress(OSError):
            self.io.delete(location)

    def _listed(self, folder: str) -> Iterator[tuple[str, int]]:
        if folder.startswith("/"):
            for path in Path(folder).rglob("*"):
                if path.suffix != _PART and path.is_file():
                    yield str(path), path.stat().st_size
            return
        from pyarrow.fs import FileSelector, FileType

        scheme, _, rest = folder.partition("://")
        bucket = rest.partition("/")[0]
        filesystem = self.io.fs_by_scheme(scheme, bucket)  # type: ignore[attr-defined]
        chosen = FileSelector(rest, recursive=True, allow_not_found=True)
        for entry in filesystem.get_file_info(chosen):
            if entry.type == FileType.File:
                yield f"{scheme}://{entry.path}", entry.size


@dataclass(frozen=True)
class Folder:
    """What was in a folder when it was listed. Files outside of it are asked for one by one."""

    store: Store
    location: str
    _sizes: Mapping[str, int]

    def size(self, location: str) -> int | None:
        """The size of a file; None where there is none."""
        if below(location, self.location) is None:
            return self.store.size(location)
        return self._sizes.get(bare(location))


def _local(location: str) -> Path | None:
    path = bare(location)
    return Path(path) if path.startswith("/") else None


def _whole(path: Path) -> Path:
    return path.with_name(path.name + _PART)
