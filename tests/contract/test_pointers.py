"""All pointers of a catalog at one moment, whichever catalog it is."""

from __future__ import annotations

import threading
import time

import pytest
from tests.contract.catalog_tables import ORDERS, add_orders

from thermocline.contract import Contract
from thermocline.lake import Lake, catalog, refs

PAIR = ("gold.one", "gold.two")


def test_pointers_lead_to_every_table(lake: Lake) -> None:
    reader = catalog.open_reader(lake.settings)
    assert reader.pointers() == {}
    lake.ensure(ORDERS)
    first = reader.pointers()
    assert first == {ORDERS.table: lake.state(ORDERS.table).metadata_location}
    add_orders(lake, ORDERS.table, 1, 2)
    second = reader.pointers()
    assert second[ORDERS.table] != first[ORDERS.table]
    for pointers in (first, second):
        pointer = pointers[ORDERS.table]
        assert reader.state_at(ORDERS.table, pointer).metadata_location == pointer
    old, new = (reader.state_at(ORDERS.table, p[ORDERS.table]) for p in (first, second))
    assert new.raw == lake.state(ORDERS.table).raw
    assert old.head() != new.head()
    lake.catalog.drop_table(ORDERS.table)
    assert reader.pointers() == {}


@pytest.mark.parametrize("among", [None, PAIR])
def test_tables_of_one_transaction_are_seen_together(
    lake: Lake, among: tuple[str, ...] | None
) -> None:
    for table in PAIR:
        lake.ensure(Contract(table, ORDERS.columns))
    heads = {table: lake.state(table).head() for table in PAIR}
    ended = threading.Event()
    torn: list[object] = []
    looks: list[int] = []

    def look() -> None:
        reader = catalog.open_reader(lake.settings)
        while not ended.is_set():
            found = reader.pointers(among)
            tags = [sorted(reader.state_at(t, found[t]).refs) for t in PAIR]
            looks.append(len(tags[0]))
            torn.extend([tags] if tags[0] != tags[1] else [])

    looker = threading.Thread(target=look)
    looker.start()
    for number in range(12):
        changes = []
        for table in PAIR:
            head = heads[table]
            assert head is not None
            changes.append(refs.set_ref(table, f"tag-{number}", head, was=None, tag=True))
        lake.commit(changes)
        looked, until = len(looks), time.monotonic() + 5
        while len(looks) == looked and time.monotonic() < until:
            time.sleep(0.001)  # one look ends after this commit; the next one meets the next commit
    ended.set()
    looker.join()
    assert not torn
    assert len(set(looks)) > 2, "hardly any state was looked at"
