"""The files of a landing folder, examined and cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from thermocline.ingest.examine import Examined, examine
from thermocline.ingest.landing import Away, Folder, LandingFile, said_of
from thermocline.ingest.source import Source

BATCH_FILES = 500


def examined(
    folder: Folder, files: Sequence[LandingFile], source: Source
) -> Iterator[Examined | Away]:
    """Examine files, some at a time. Hashing leaves the interpreter alone, so threads help."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        for start in range(0, len(files), BATCH_FILES):
            part = files[start : start + BATCH_FILES]
            yield from pool.map(lambda file: _looked_at(folder, file, source), part)


def _looked_at(folder: Folder, file: LandingFile, source: Source) -> Examined | Away:
    try:
        return examine(folder, file, source)
    except Away as away:
        return away
    except OSError as error:
        return Away(file, said_of(error))


def batches(files: Iterator[Examined], most_bytes: int) -> Iterator[list[Examined]]:
    """Cut files into batches of so many bytes, unpacked, at most."""
    batch: list[Examined] = []
    size = 0
    for file in files:
        if batch and (size + file.expanded > most_bytes or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.expanded
    if batch:
        yield batch
