"""Create a table from its contract, and bring an existing one to a newer contract."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from thermocline.contract import evolution
from thermocline.contract.definition import Contract
from thermocline.errors import CommitConflict, ContractError
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, schema_evolution
from thermocline.lake import schema as schemas
from thermocline.lake.atomic_commit import retrying
from thermocline.lake.catalog import catalog_errors
from thermocline.lake.crash_points import crash_point
from thermocline.lake.naming import validate_table_name
from thermocline.lake.retention import MAX_AGE_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from thermocline.lake.lake import Lake

REFUSED_NEXT_STEP = "Nothing was written. docs/contracts.md says which changes a table can take."


USER_CHOICE = ("write.metadata.delete-after-commit.enabled", True)
"""A property that stays as somebody set it."""


def ensure_table(lake: Lake, contract: Contract) -> list[str]:
    """Create or evolve; see Lake.ensure."""
    from pyiceberg.exceptions import CommitFailedException

    table = validate_table_name(contract.table)
    try:
        for again in retrying(CommitFailedException):
            with again, catalog_errors(lake.settings.catalog.type):
                if lake.exists(table):
                    return _evolve(lake, contract)
                _create(lake, contract)
                crash_point("table.created")
                return ["created"]
    except CommitFailedException as error:
        raise CommitConflict(
            f"{table} was changed by others again and again: {str(error).splitlines()[0]}",
            "Nothing was changed. Run again when they are done.",
            table=table,
        ) from error
    raise AssertionError("retrying either returns or raises")


def pending_changes(lake: Lake, contract: Contract) -> list[str]:
    """What `ensure` would do, without doing it. Raises ContractError where it would refuse."""
    if not lake.exists(contract.table):
        return ["create"]
    return [str(change) for change in _compare_contract(lake, contract).changes]


def table_properties(contract: Contract) -> dict[str, str]:
    """The table properties that a contract asks for."""
    mode = contract.updates.value
    # A task then gets whole partitions and sorts them. Iceberg's own choice for a sorted table is
    # to sort all rows of a write, for which Spark computes them twice: once to find the bounds.
    spread = {"write.distribution-mode": "hash"} if contract.partition else {}
    return {
        "format-version": "2",  # PyIceberg reads version 3 and cannot write it
        "write.parquet.compression-codec": "zstd",
        "write.delete.mode": mode,
        "write.update.mode": mode,
        "write.merge.mode": mode,
        **spread,
        **(
            {MAX_AGE_PROPERTY: str(round(contract.history.total_seconds() * 1000))}
            if contract.history
            else {}
        ),
        "commit.retry.num-retries": "20",
        # Each commit leaves a metadata file; those that the log no longer names are removed.
        "write.metadata.delete-after-commit.enabled": "true",
        # Iceberg's own default, which PyIceberg's appends do not share: without it a stream's
        # commits would leave a manifest each.
        "commit.manifest-merge.enabled": "true",
        # A change rewrites the manifests that list its files. Of Iceberg's 8 MiB each has a
        # hundred thousand files, whichever few of them the change is about.
        "commit.manifest.target-size-bytes": str(512 << 10),
        "thermocline.contract": f"{contract.id or contract.table} {contract.version}",
        **({companions.PROPERTY: contract.companion_of} if contract.companion_of else {}),
    }


def _create(lake: Lake, contract: Contract) -> None:
    """Create, or raise CommitFailedException when another process was first."""
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    _ensure_namespace(lake.catalog, contract.layer)
    owner = lake.states([contract.companion_of]) if contract.companion_of else {}
    # A companion that comes later was empty at every tag of its table.
    tags = [ref.name for each in owner.values() for ref in each.refs.values() if ref.type == "tag"]
    try:
        _create_table(lake.catalog, contract, tags)
    except TableAlreadyExistsError as error:
        raise CommitFailedException(str(error)) from error


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    from pyiceberg.exceptions import NamespaceAlreadyExistsError
    from sqlalchemy.exc import IntegrityError

    # A SQL catalog looks and then inserts: between the two another process may have inserted it.
    with suppress(NamespaceAlreadyExistsError, IntegrityError):
        catalog.create_namespace(namespace)


def _create_table(catalog: Catalog, contract: Contract, tags: Iterable[str]) -> None:
    from pyiceberg.table.update.snapshot import ManageSnapshots

    shape = contract.shape
    schema = schemas.iceberg_schema(shape)
    with catalog.create_table_transaction(
        contract.table,
        schema,
        partition_spec=schemas.partition_spec(shape, schema),
        sort_order=schemas.sort_order(shape, schema),
        properties=table_properties(contract),
    ) as transaction:
        # An empty first snapshot: every branch then has something to start from, and publish
        # always compares main with a snapshot.
        created = {bookmarks.OPERATION: "create"}
        with transaction.update_snapshot(snapshot_properties=created).fast_append():
            pass
        if (first := transaction.table_metadata.current_snapshot_id) is not None:
            with ManageSnapshots(transaction) as manage:
                for tag in tags:
                    manage.create_tag(first, tag)


def _compare_contract(lake: Lake, contract: Contract) -> evolution.Evolution:
    changes = evolution.plan_evolution(schemas.shape_of(lake.state(contract.table)), contract)
    if changes.problems:
        raise ContractError(list(changes.problems), REFUSED_NEXT_STEP)
    return changes


def _evolve(lake: Lake, contract: Contract) -> list[str]:
    """Compare and change in one transaction, which fails if somebody changed the table between."""
    from pyiceberg.exceptions import CommitFailedException

    changes = _compare_contract(lake, contract).changes
    state = lake.state(contract.table)
    wanted = {k: v for k, v in table_properties(contract).items() if k != "format-version"}
    said = state.properties
    outdated = {
        k: v for k, v in wanted.items() if said.get(k) != v and (k, k in said) != USER_CHOICE
    }
    if not changes and not outdated:
        return []
    table = lake.iceberg(contract.table)
    if table.metadata_location != state.metadata_location:
        raise CommitFailedException("the table changed while it was compared")
    with table.transaction() as transaction:
        schema_evolution.apply_changes(transaction, changes)
        if outdated:
            transaction.set_properties(outdated)
    return [str(change) for change in changes]
