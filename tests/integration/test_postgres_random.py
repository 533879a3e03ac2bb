"""Silver is the source's table, row by row, whatever its transactions were."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing

import pytest
from tests.integration.postgres_project import Project
from tests.integration.postgres_workload import Workload

from thermocline.ingest.source import BatchLimits
from thermocline.ingest.stream import open_ingester

CHANGES = 10_000


@pytest.fixture
def shop(captured: Project) -> Project:
    return captured


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_silver_equals_the_source_after_random_transactions(shop: Project, seed: int) -> None:
    with (
        closing(shop.server.connect(shop.database)) as one,
        closing(shop.server.connect(shop.database)) as other,
    ):
        workload = Workload(one, other, seed)
        workload.run(500)
        # The first state is read while transactions are under way.
        done = threading.Event()
        writer = threading.Thread(target=workload.run_until, args=(done,))
        writer.start()
        try:
            shop.ingest()
        finally:
            done.set()
            writer.join()
        shop.run()
        workload.run(CHANGES)
    # Begun anew after one small batch, as a rule in the middle of a transaction.
    for rows in (501, 333):
        lakehouse = shop.open()
        source = lakehouse.sources["orders"]
        contract = lakehouse.contracts[source.target]
        limits = BatchLimits(rows=rows)
        with closing(open_ingester(lakehouse.lake, source, contract, limits=limits)) as ingester:
            taken = ingester.ingest_batch()
        assert taken is not None and taken.rows == rows
    shop.ingest()
    shop.run()
    assert shop.silver() == shop.truth()
    changes = shop.bronze("_lsn", "id", "_op", "_position")
    positions = [row[3] for row in changes]
    assert positions == list(range(1, len(changes) + 1))
    twice = [row for row, count in Counter(row[:3] for row in changes).items() if count > 1]
    assert twice == []
    assert len(changes) > CHANGES * 0.7  # the others were rolled back
