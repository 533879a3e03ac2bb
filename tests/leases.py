"""The holder of a group-commit lease, read from the catalog's database."""

from __future__ import annotations

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from thermocline.config import Settings
from thermocline.lake.catalog import sqlalchemy_uri

HOLDER = "SELECT owner FROM thermocline_commit_leases WHERE owner <> '' AND expires > 0"


def find_leaseholder(settings: Settings) -> int | None:
    """Return the process that commits for a table now, if there is one; None on a REST catalog."""
    if settings.catalog.type == "rest":
        return None
    # No pool: a process that is forked from here must not share a connection.
    engine = create_engine(sqlalchemy_uri(settings), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            owner = connection.execute(text(HOLDER)).scalar()
    except (OperationalError, ProgrammingError):  # the tables do not exist yet
        return None
    return int(owner.split(":")[1]) if owner else None
