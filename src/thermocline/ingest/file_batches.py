"""Inspect the files of a landing folder and split them into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from thermocline.ingest.inspection import InspectedFile, inspect_file
from thermocline.ingest.landing import FileUnavailable, LandingFile, LandingFolder, describe_error
from thermocline.ingest.source import Source

BATCH_FILES = 500


def inspect_files(
    folder: LandingFolder, files: Sequence[LandingFile], source: Source
) -> Iterator[InspectedFile | FileUnavailable]:
    """Inspect files in parallel. Hashing releases the interpreter lock, so threads help."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        for start in range(0, len(files), BATCH_FILES):
            part = files[start : start + BATCH_FILES]
            yield from pool.map(lambda file: _inspect(folder, file, source), part)


def _inspect(
    folder: LandingFolder, file: LandingFile, source: Source
) -> InspectedFile | FileUnavailable:
    try:
        return inspect_file(folder, file, source)
    except FileUnavailable as unavailable:
        return unavailable
    except OSError as error:
        return FileUnavailable(file, describe_error(error))


def split_into_batches(
    files: Iterator[InspectedFile], max_bytes: int
) -> Iterator[list[InspectedFile]]:
    """Split files into batches of at most `max_bytes` uncompressed bytes and BATCH_FILES files."""
    batch: list[InspectedFile] = []
    size = 0
    for file in files:
        if batch and (size + file.expanded > max_bytes or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.expanded
    if batch:
        yield batch
