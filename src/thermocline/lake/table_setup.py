"""Create a table from its contract, or evolve it to a newer contract."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from thermocline.contract import evolution
from thermocline.contract.definition import Contract
from thermocline.errors import CommitConflict, ContractError, first_line
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, schema_evolution
from thermocline.lake import schema as schemas
from thermocline.lake.catalog import catalog_errors
from thermocline.lake.clustering import CLUSTER_PROPERTY, format_cluster
from thermocline.lake.crash_points import crash_point
from thermocline.lake.naming import validate_table_name
from thermocline.lake.retention import MAX_AGE_PROPERTY
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from thermocline.lake.lake import Lake

REFUSED_NEXT_STEP = "Nothing was written. docs/contracts.md says which changes a table can take."


USER_CHOICE = ("write.metadata.delete-after-commit.enabled", True)
"""A property that a user may override."""


def ensure_table(lake: Lake, contract: Contract) -> list[str]:
    """Create or evolve a table; see Lake.ensure."""
    from pyiceberg.exceptions import CommitFailedException

    table = validate_table_name(contract.table)
    try:
        for attempt in retry_on(CommitFailedException):
            with attempt, catalog_errors(lake.settings.catalog.type):
                if lake.exists(table):
                    return _evolve(lake, contract)
                _create(lake, contract)
                crash_point("table.created")
                return ["created"]
    except CommitFailedException as error:
        raise CommitConflict(
            f"{table} was changed repeatedly by other processes: {first_line(error)}",
            "Nothing was changed. Run again when they are done.",
            table=table,
        ) from error
    raise AssertionError("the retry loop either returns or raises")


def pending_changes(lake: Lake, contract: Contract) -> list[str]:
    """Return the changes of `ensure` without applying them. Raise ContractError if it would."""
    if not lake.exists(contract.table):
        return ["create"]
    return [str(change) for change in _compare_contract(lake, contract).changes]


def table_properties(contract: Contract) -> dict[str, str]:
    """Return the table properties of a contract."""
    mode = contract.updates.value
    # Each task then gets whole partitions and sorts them. Iceberg's default for a sorted table
    # sorts all rows of a write, which Spark computes twice: once to find the bounds.
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
        # Each commit adds a metadata file; files that drop out of the log are removed.
        "write.metadata.delete-after-commit.enabled": "true",
        # Iceberg's default, but not PyIceberg's: without it each commit of a stream would add a
        # manifest.
        "commit.manifest-merge.enabled": "true",
        # A change rewrites the manifests of its files. At Iceberg's default of 8 MiB each lists a
        # hundred thousand files, even if the change touches few of them.
        "commit.manifest.target-size-bytes": str(512 << 10),
        "thermocline.contract": f"{contract.id or contract.table} {contract.version}",
        **({companions.PROPERTY: contract.companion_of} if contract.companion_of else {}),
        **({CLUSTER_PROPERTY: format_cluster(contract.cluster)} if contract.cluster else {}),
    }


def _create(lake: Lake, contract: Contract) -> None:
    """Create a table, or raise CommitFailedException if another process was first."""
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    _ensure_namespace(lake.catalog, contract.layer)
    owner = lake.states([contract.companion_of]) if contract.companion_of else {}
    # A companion that is created later was empty at every tag of its table.
    tags = [ref.name for each in owner.values() for ref in each.refs.values() if ref.type == "tag"]
    try:
        _create_table(lake.catalog, contract, tags)
    except TableAlreadyExistsError as error:
        raise CommitFailedException(str(error)) from error


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    from pyiceberg.exceptions import NamespaceAlreadyExistsError
    from sqlalchemy.exc import IntegrityError

    # A SQL catalog checks and then inserts: another process may insert it in between.
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
        # An empty first snapshot: every branch can start from it, and publish always compares
        # main with a snapshot.
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
    """Compare and change in one transaction, which fails if the table changed in between."""
    from pyiceberg.exceptions import CommitFailedException

    changes = _compare_contract(lake, contract).changes
    state = lake.state(contract.table)
    target = {k: v for k, v in table_properties(contract).items() if k != "format-version"}
    current = state.properties
    outdated = {
        k: v for k, v in target.items() if current.get(k) != v and (k, k in current) != USER_CHOICE
    }
    is_unclustered = CLUSTER_PROPERTY in current and not contract.cluster
    if not changes and not outdated and not is_unclustered:
        return []
    table = lake.iceberg(contract.table)
    if table.metadata_location != state.metadata_location:
        raise CommitFailedException("the table changed while it was compared")
    with table.transaction() as transaction:
        schema_evolution.apply_changes(transaction, changes)
        if outdated:
            transaction.set_properties(outdated)
        if is_unclustered:
            transaction.remove_properties(CLUSTER_PROPERTY)
    return [str(change) for change in changes]
