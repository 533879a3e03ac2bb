"""Point tables to metadata files that were written elsewhere, all in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.lake.atomic_commit import PointerMoved, SessionWriter
from thermocline.lake.catalog import catalog_errors
from thermocline.lake.crash_points import crash_point

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

PointerChange = tuple[str, str]
"""The current value and the new value."""


def swap_pointers(
    catalog: SqlCatalog,
    pointers: Mapping[str, PointerChange],
    layers: Mapping[str, PointerChange],
    write_rows: SessionWriter,
) -> None:
    """Change the pointers of tables and the locations of layers, all or none.

    Unlike a commit it deletes nothing: the files of the old metadata are not ours. Raise
    PointerMoved if a current value has changed.
    """
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
    from sqlalchemy import update
    from sqlalchemy.orm import Session

    tables, spaces = IcebergTables, IcebergNamespaceProperties
    kind = "sqlite" if catalog.engine.dialect.name == "sqlite" else "postgres"
    with catalog_errors(kind), Session(catalog.engine) as session:
        statements: list[tuple[str, Any]] = []
        for table, (old, new) in sorted(pointers.items()):
            layer, name = table.split(".", 1)
            row = (tables.catalog_name == catalog.name, tables.table_namespace == layer,
                   tables.table_name == name, tables.metadata_location == old)  # fmt: skip
            values = {"metadata_location": new, "previous_metadata_location": None}
            statements.append((table, update(tables).where(*row).values(**values)))
        for layer, (old, new) in sorted(layers.items()):
            row = (spaces.catalog_name == catalog.name, spaces.namespace == layer,
                   spaces.property_key == "location", spaces.property_value == old)  # fmt: skip
            statements.append((layer, update(spaces).where(*row).values(property_value=new)))
        for name, statement in statements:
            result: Any = session.execute(statement)
            if result.rowcount != 1:
                raise PointerMoved(
                    f"{name} was changed meanwhile.", "Nothing was switched. Run again.", table=name
                )
        write_rows(session)
        crash_point("relocate.swapping")
        session.commit()
    crash_point("relocate.swapped")
