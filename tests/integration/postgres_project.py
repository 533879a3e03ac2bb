"""A project with one Postgres source, and its table in the source and in the lake."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.odcs import HEAD
from tests.servers.postgres import Postgres

import thermocline as tc

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

TABLE = """
create table orders (
    id int primary key,
    customer text not null,
    amount numeric(30,2),
    ordered timestamptz,
    due date,
    local timestamp,
    tags text[],
    extra jsonb
)
"""
COLUMNS = """\
      - {name: id, physicalType: long, required: true%s}
      - {name: customer, physicalType: string}
      - {name: amount, physicalType: "decimal(30,2)"}
      - {name: ordered, physicalType: timestamptz}
      - {name: due, physicalType: date}
      - {name: local, physicalType: timestamp}
      - name: tags
        logicalType: array
        items: {logicalType: string, physicalType: string}
      - name: extra
        logicalType: object
        properties: [{name: x, physicalType: int}]
"""
BRONZE = """\
      - {name: _op, physicalType: string, required: true}
      - {name: _ts_ms, physicalType: long, required: true}
      - {name: _lsn, physicalType: long, required: true}
      - {name: _txn, physicalType: string}
      - {name: _table, physicalType: string}
"""
SILVER = """\
      - {name: source_lsn, physicalType: long, required: true}
"""
MODEL = """\
select id, customer, amount, ordered, due, local, tags, extra, _lsn as source_lsn, _op
from bronze.raw_orders
"""
RAW, ORDERS = "bronze.raw_orders", "silver.orders"
SECRET = "ORDERS_DB_PASSWORD"


class Project:
    """The files of a project whose source is a database of its own in a server."""

    def __init__(self, folder: Path, server: Postgres, database: str) -> None:
        self.folder = folder
        self.server = server
        self.database = database
        server.create_database(database)
        self.sql(TABLE)
        self.contracts()
        self.source()
        self._opened: Lakehouse | None = None

    def contracts(self, drift: str = "refuse") -> None:
        self._write(
            "contracts/bronze/raw_orders.odcs.yaml",
            HEAD.format(name="raw_orders") + BRONZE + COLUMNS % "" + "customProperties:\n"
            "  - {property: write, value: append}\n"
            f"  - {{property: drift, value: {drift}}}\n",
        )
        self._write(
            "contracts/silver/orders.odcs.yaml",
            HEAD.format(name="orders")
            + COLUMNS % ", primaryKey: true"
            + SILVER
            + "customProperties:\n"
            "  - {property: write, value: merge}\n"
            "  - {property: orderBy, value: source_lsn}\n"
            "  - {property: deleteWhen, value: \"_op = 'd'\"}\n",
        )
        self._write("models/silver/orders.sql", MODEL)

    def source(self, **settings: Any) -> None:
        given = {
            "name": "orders",
            "kind": "postgres",
            "host": "127.0.0.1",
            "port": self.server.port,
            "database": self.database,
            "user": self.server.user,
            "password": {"secret": SECRET},
            "tables": ["public.orders"],
            "target": RAW,
            **settings,
        }
        lines = [f"{key}: {json.dumps(v)}" for key, v in given.items() if v is not None]
        self._write("sources/orders.yaml", "\n".join(lines) + "\n")

    def open(self) -> Lakehouse:
        """The project, opened anew as the next command would."""
        return tc.open(self.folder)

    def ingest(self, **options: Any) -> tuple[int, int]:
        """One ingestion by a command of its own: rows that landed, rows that were set aside."""
        [target] = self.open().ingest(**options).targets
        return target.rows, target.quarantined

    def run(self) -> None:
        self.open().run()

    def bronze(self, *columns: str) -> list[tuple[Any, ...]]:
        """What bronze holds, in the order of the source."""
        found = self.open().table(RAW).to_arrow().to_pylist()
        found.sort(key=lambda row: (row["_position"], row["id"] or 0))
        return [tuple(row[name] for name in columns) for row in found]

    def silver(self) -> list[tuple[Any, ...]]:
        """Silver's rows by key, without what only silver has."""
        found = self.open().table(ORDERS).to_arrow().to_pylist()
        rows = [tuple(v for k, v in row.items() if k != "source_lsn") for row in found]
        return sorted(rows, key=lambda row: row[0])

    def truth(self) -> list[tuple[Any, ...]]:
        """The rows of the source's table, by key, as silver should have them."""
        return self.sql("select * from orders order by id")

    def sql(self, *statements: str) -> Any:
        """Run statements in the source, each a transaction of its own; the last one's rows."""
        connection = self.server.connect(self.database)
        with closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def sql_with(self, statement: str, arguments: list[Any]) -> Any:
        """Run one statement with arguments in the source; its rows."""
        connection = self.server.connect(self.database)
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall() if cursor.description else []

    def slots(self) -> list[tuple[Any, ...]]:
        """The source's replication slots in this database."""
        return self.sql(
            "select slot_name, confirmed_flush_lsn - '0/0' from pg_replication_slots "
            "where database = current_database()"
        )

    def remove(self) -> None:
        """Drop slots and database: a server has only ten slots."""
        for name, _ in self.slots():
            self.sql(f"select pg_drop_replication_slot('{name}')")
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f'drop database "{self.database}" with (force)')

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
