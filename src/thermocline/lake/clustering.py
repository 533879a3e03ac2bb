"""Which columns a table's z-order has, and which files follow an order, from metadata alone.

Iceberg's sort orders cannot express a z-order, so the contract's is a table property, and a file
that follows it has a name that begins with the curve's columns. A manifest has the path of each
file: planning sees what is clustered without opening a file, also when the snapshot that did it has
expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from thermocline.contract.definition import CLUSTER_COLUMNS

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

CLUSTER_PROPERTY = "thermocline.cluster-by"
"""The table property with the columns of the z-order, as a JSON list of names."""
ZORDER_PREFIX = "zorder-"
"""Begins the names of files of a z-order; then come the ids of its columns."""
SORTED_PREFIX = "sorted-"
"""Begins the names of files that were sorted together, so that their ranges do not overlap.

The sort order in a file's entry only says that the file itself is sorted.
"""


def cluster_columns(table: Table) -> tuple[NestedField, ...]:
    """Return the columns of the table's z-order; none if it has no z-order or a column is gone."""
    names = parse_cluster(table.metadata.properties.get(CLUSTER_PROPERTY, ""))
    top = {field.name: field for field in table.schema().fields}
    if any(name not in top or is_nested(top[name]) for name in names):
        return ()
    return tuple(top[name] for name in names)


def format_cluster(names: Sequence[str]) -> str:
    """Return the property of a z-order by these columns."""
    return json.dumps(list(names))


def parse_cluster(text: str) -> tuple[str, ...]:
    """Return the names in the property of a z-order. One that another tool broke counts as none."""
    try:
        names = json.loads(text) if text else []
    except ValueError:
        return ()
    valid = isinstance(names, list) and len(names) in CLUSTER_COLUMNS
    return tuple(names) if valid and all(isinstance(name, str) for name in names) else ()


def zorder_prefix(columns: Iterable[NestedField]) -> str:
    """Return how the names of files of a z-order begin."""
    return ZORDER_PREFIX + "-".join(str(column.field_id) for column in columns) + "-"


def is_nested(column: NestedField) -> bool:
    """Whether values of a column have parts, so that they cannot be sorted."""
    return not column.field_type.is_primitive
