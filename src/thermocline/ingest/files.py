"""Ingest a landing folder: every file exactly once, despite duplicates and crashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.config import private_files
from thermocline.config.scratch import ScratchFolder
from thermocline.contract.definition import Contract, DriftMode
from thermocline.contract.types import Primitive, Type
from thermocline.errors import (
    BadInput,
    CommitConflict,
    CommitUnknown,
    Permanent,
    Transient,
    first_line,
)
from thermocline.ingest import drift, ledger
from thermocline.ingest.arrow.reader import ArrowReader
from thermocline.ingest.batch import (
    Batch,
    BatchResult,
    Provenance,
    SchemaDrift,
    UnreadableInput,
    land,
)
from thermocline.ingest.file_batches import inspect_files, split_into_batches
from thermocline.ingest.inspection import InspectedFile
from thermocline.ingest.landing import (
    FileUnavailable,
    LandingFile,
    LandingFolder,
    Listing,
    Refusal,
    list_landing,
    open_folder,
)
from thermocline.ingest.layout import Layout
from thermocline.ingest.ledger import Ledger, read_ledger
from thermocline.ingest.record_reader import read_files
from thermocline.ingest.source import Source, folders_overlap
from thermocline.ingest.stage import StagedFile, stage_file
from thermocline.ingest.validation import strip_provenance
from thermocline.ingest.value_expressions import refuse_unwritable_types
from thermocline.lake.crash_points import crash_point
from thermocline.lake.retries import retry_moved_main
from thermocline.telemetry import SILENT, Progress, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake

BATCH_BYTES = 4 << 30
"""How often a batch is retried after a concurrent commit to the table."""

STRING = Primitive("string")


@dataclass(frozen=True)
class FileIngestReport:
    """The result of one source's ingestion.

    `skipped` files had already landed, `growing` ones are not settled yet, and `unavailable` ones
    could not be read and are tried again.
    """

    source: str
    target: str
    files: int = 0
    rows: int = 0
    quarantined: int = 0
    skipped: int = 0
    growing: int = 0
    snapshot: int | None = None
    refused: tuple[Refusal, ...] = ()
    unavailable: tuple[LandingFile, ...] = ()

    def plus(self, landed: BatchResult, files: int) -> FileIngestReport:
        """Return the report with one more batch."""
        return replace(
            self,
            files=self.files + files,
            rows=self.rows + landed.rows,
            quarantined=self.quarantined + landed.quarantined,
            snapshot=landed.snapshot,
        )


@dataclass(frozen=True)
class FileBatch:
    """Files to land in one commit. `unreadable` ones are quarantined as whole files."""

    lake: Lake
    source: Source
    contract: Contract
    folder: LandingFolder
    files: tuple[InspectedFile, ...]
    unreadable: tuple[InspectedFile, ...]
    run: str
    scratch: Path
    fast_path: ArrowReader
    ledger: Ledger
    columns_added: bool = False

    @property
    def all_files(self) -> list[InspectedFile]:
        """All files that the commit records."""
        return [*self.files, *self.unreadable]

    @cached_property
    def staged_files(self) -> list[StagedFile]:
        """The files in a form that Spark can read."""
        return [stage_file(self.folder, file, self.source, self.scratch) for file in self.files]

    def without(self, hashes: set[str]) -> FileBatch:
        """Return the batch without some files, given by hash."""
        kept, unreadable = (
            tuple(file for file in files if file.sha256 not in hashes)
            for files in (self.files, self.unreadable)
        )
        return replace(self, files=kept, unreadable=unreadable)

    def land(self) -> BatchResult:
        """Land the files. Raises like `batch.land`."""
        counted = [file.records for file in self.files]
        known = [count for count in counted if count is not None]
        origins = tuple(
            Provenance(
                file.file.name, file.sha256, Layout.from_file(file, self.source, self.contract),
                None if drift.find_unknown_fields(file, self.contract) else file.records,
            )
            for file in self.files
        )  # fmt: skip
        unreadable = (
            UnreadableInput(file.file.name, file.sha256, file.flaw or "cannot be read")
            for file in self.unreadable
        )
        return land(
            Batch(
                self.lake,
                self.source,
                self.contract,
                self.run,
                origins,
                self._read,
                bookmark=ledger.make_bookmark(self.all_files),
                consumed=self.ledger.make_consumed(self.all_files),
                expected=sum(known) if len(known) == len(counted) else None,
                unreadable=tuple(unreadable),
                confirm=self._confirm,
                columns_added=self.columns_added,
                fast_path=lambda contract: self.fast_path.read(
                    self.files, contract, columns_added=self.columns_added
                ),
            )
        )

    def _read(self, contract: Contract, only: frozenset[int] | None) -> DataFrame:
        numbered = [
            (number, file)
            for number, file in enumerate(self.staged_files)
            if only is None or number in only
        ]
        spark, will_filter = self.lake.spark.session, only is not None
        return read_files(spark, numbered, self.source, contract, will_filter=will_filter)

    def _confirm(self) -> None:
        for file in self.all_files:
            if not self.folder.is_unchanged(file.file):
                raise Transient(
                    f"{one_line(file.file.name)} changed while it was read.",
                    "Nothing of the batch landed. Run again when the file is complete.",
                )


def ingest(
    lake: Lake,
    source: Source,
    contract: Contract,
    *,
    run: str,
    progress: Progress = SILENT,
    batch_bytes: int = BATCH_BYTES,
    listing: Listing | None = None,
) -> FileIngestReport:
    """Land every new file of a source in its bronze table.

    A file's identity is its content: delivered twice or under another name it lands once; changed
    it is a new file. Rows that violate the contract go to quarantine. Files land in batches, each
    in one commit that also records its files; a batch becomes visible whole or not at all. Files
    that the drift policy refuses are named in the report and tried again next time. `listing` is a
    listing of the folder, if the caller already has one.
    """
    _refuse_overlap(source, lake)
    contract = strip_provenance(contract)
    refuse_unwritable_types(contract)
    folder = open_folder(source, lake.settings)
    listing = list_landing(folder, source) if listing is None else listing
    crash_point("ingest.listed")
    if not lake.exists(source.target):
        lake.ensure(contract)
    ingestion = _FileIngest(lake, source, contract, folder, run)
    fresh = ingestion.ledger.filter_unread(listing.files)
    ingestion.report = FileIngestReport(
        source.name,
        source.target,
        skipped=len(listing.files) - len(fresh),
        growing=listing.growing,
        refused=tuple(listing.refused),
    )
    try:
        for files in split_into_batches(
            ingestion.skip_unavailable(inspect_files(folder, fresh, source)), batch_bytes
        ):
            ingestion.land_files(files)
            progress.advance(len(files), f"{ingestion.report.rows:,} rows")
    finally:
        ingestion.scratch.close()
    return ingestion.report


class _FileIngest:
    """One ingestion in progress."""

    def __init__(
        self, lake: Lake, source: Source, contract: Contract, folder: LandingFolder, run: str
    ) -> None:
        self.lake = lake
        self.source = source
        self.contract = contract
        self.folder = folder
        self.run = run
        self.report = FileIngestReport(source.name, source.target)
        self.ledger = read_ledger(lake, source.target, source.quarantine)
        staging = private_files.ensure_folder(lake.settings.project) / "staging"
        staging.mkdir(exist_ok=True)
        self.scratch = ScratchFolder(staging, "run-")
        self.fast_path = ArrowReader(lake, source, folder)

    def skip_unavailable(
        self, found: Iterable[InspectedFile | FileUnavailable]
    ) -> Iterator[InspectedFile]:
        """Yield the files that could be read, and report the others."""
        for each in found:
            if isinstance(each, FileUnavailable):
                self.report_unavailable(each)
            else:
                yield each

    def report_unavailable(self, unavailable: FileUnavailable) -> None:
        """Report a file that cannot be read now."""
        refused = (Refusal(unavailable.file.name, f"cannot be read: {unavailable.reason}"),)
        self.report = replace(
            self.report,
            refused=self.report.refused + (refused if unavailable.reason else ()),
            unavailable=(*self.report.unavailable, unavailable.file),
        )

    def land_files(self, files: Sequence[InspectedFile]) -> None:
        """Land files; retry from the start after a concurrent commit."""
        retry_moved_main(lambda: self._land_files(files), lambda _: self._reread_ledger())

    def _reread_ledger(self) -> None:
        self.ledger = read_ledger(self.lake, self.source.target, self.source.quarantine)

    def _land_files(self, files: Sequence[InspectedFile]) -> None:
        new = self._filter_new(files)
        contract = drift.include_added_columns(self.lake, self.contract)
        refused: list[Refusal] = []
        readable = _accept_files([file for file in new if file.flaw is None], contract, refused)
        if contract.drift is DriftMode.ADD:
            contract = drift.add_columns(contract, _collect_new_fields(readable, contract))
        batch = FileBatch(
            self.lake, self.source, contract, self.folder, tuple(readable),
            tuple(file for file in new if file.flaw is not None),
            self.run, self.scratch.path, self.fast_path, self.ledger,
        )  # fmt: skip
        landed, batch = self._land(batch, refused)
        file_count = len(batch.all_files)
        report = self.report if landed is None else self.report.plus(landed, file_count)
        self.report = replace(
            report,
            skipped=report.skipped + len(files) - len(new),
            refused=(*report.refused, *refused),
        )
        self.ledger.add(batch.all_files)

    def _land(
        self, batch: FileBatch, refused: list[Refusal]
    ) -> tuple[BatchResult | None, FileBatch]:
        """Land a batch without the files that turn out to be unreadable or refused."""
        while batch.all_files:
            self.lake.ensure(batch.contract)
            try:
                return batch.land(), batch
            except (CommitConflict, CommitUnknown):
                raise
            except SchemaDrift as found:
                batch = _apply_drift(batch, found.fields, refused)
            except Exception as error:
                if unavailable := self._find_unavailable(batch, error):
                    batch = batch.without(unavailable)
                    continue
                if type(error) is not Permanent or isinstance(error.__cause__, OSError):
                    raise  # a rule, a contract or a disk, not a file
                broken = _find_unreadable(batch)
                if not broken:
                    raise
                batch = replace(
                    batch.without({file.sha256 for file in broken}),
                    unreadable=(*batch.unreadable, *broken),
                )
        return None, batch

    def _find_unavailable(self, batch: FileBatch, error: Exception) -> set[str]:
        """Return the hashes of files that changed or vanished, a possible cause of the failure."""
        found = {
            file.file: FileUnavailable(file.file)
            for file in batch.all_files
            if not self.folder.is_unchanged(file.file)
        }
        if isinstance(error, FileUnavailable):
            found.setdefault(error.file, error)
        for each in found.values():
            self.report_unavailable(each)
        return {file.sha256 for file in batch.all_files if file.file in found}

    def _filter_new(self, files: Sequence[InspectedFile]) -> list[InspectedFile]:
        """Return the files whose content has not landed, each content once."""
        new: dict[str, InspectedFile] = {}
        landed = self.ledger.find_landed(files)
        for file in files:
            if file.sha256 not in landed:
                new.setdefault(file.sha256, file)
        return list(new.values())


def _accept_files(
    files: Sequence[InspectedFile], contract: Contract, refused: list[Refusal]
) -> list[InspectedFile]:
    """Return the files whose header or schema fits the contract; refuse the others."""
    accepted = []
    for file in files:
        reason = drift.explain_mismatch(file, contract)
        unknown_fields = (
            drift.find_unknown_fields(file, contract) if contract.drift is DriftMode.REFUSE else {}
        )
        if reason is None and unknown_fields:
            reason = drift.explain_refusal(unknown_fields, contract)
        if reason is None:
            accepted.append(file)
        else:
            refused.append(Refusal(file.file.name, reason))
    return accepted


def _collect_new_fields(files: Sequence[InspectedFile], contract: Contract) -> dict[str, Type]:
    found: dict[str, Type] = {}
    for file in files:
        for name, type_ in drift.find_unknown_fields(file, contract).items():
            found[name] = type_ if found.get(name, type_) == type_ else STRING
    return found


def _apply_drift(
    batch: FileBatch, fields: dict[int, set[str]], refused: list[Refusal]
) -> FileBatch:
    """Apply the drift policy to the batch: add columns, or refuse files."""
    if batch.contract.drift is DriftMode.ADD:
        names = {name for found in fields.values() for name in found}
        contract = drift.add_columns(batch.contract, dict.fromkeys(names, STRING))
        return replace(batch, contract=contract, columns_added=True)
    refused_files = {number: batch.files[number] for number in fields}
    for number, file in refused_files.items():
        refused.append(
            Refusal(file.file.name, drift.explain_refusal(fields[number], batch.contract))
        )
    return batch.without({file.sha256 for file in refused_files.values()})


def _find_unreadable(batch: FileBatch) -> list[InspectedFile]:
    """Find the files that Spark cannot read to the end by reading each one separately."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    broken = []
    for file in batch.staged_files:
        try:
            frame = read_files(batch.lake.spark.session, [(0, file)], batch.source, batch.contract)
            frame.write.format("noop").mode("overwrite").save()
        except Py4JJavaError as error:
            broken.append(
                replace(file.inspected, flaw=f"damaged: {_root_message(error.java_exception)}")
            )
        except PySparkException as error:
            message = one_line(first_line(error))[:200]
            broken.append(replace(file.inspected, flaw=f"damaged: {message}"))
    return broken


def _root_message(failure: Any) -> str:
    """Return the message of the innermost Java exception."""
    while failure.getCause() is not None:
        failure = failure.getCause()
    return one_line(str(failure.getMessage() or failure.getClass().getName()))[:200]


def _refuse_overlap(source: Source, lake: Lake) -> None:
    if folders_overlap(source.path, lake.settings.warehouse):
        raise BadInput(
            f"The landing folder of {source.name} and the warehouse overlap.",
            "Keep raw files outside the warehouse, and the warehouse outside the landing folder.",
        )
