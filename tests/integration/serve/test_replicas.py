"""Two nodes that hold the same tables: one dies, and nobody who asks can tell."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.integration.serve import shop_lake
from tests.integration.serve.shop_lake import PER_DAY, head

from thermocline.lake import Lake
from thermocline.serve.fleet.fleet import FILE_READER_NICE, NODE_NICE, Fleet, FleetConfig
from thermocline.serve.router import QueryLimits, Router
from thermocline.serve.values import Answer, Caller, QueryRequest

TABLE = "silver.orders"
NODES = ("node-0", "node-1")


def asked(number: int) -> QueryRequest:
    """A question that was not asked before."""
    recent = "ordered_at >= current_date - interval 2 day"
    return QueryRequest(f"select count(*) as n, {number} as number from {TABLE} where {recent}")


async def until_both_hold(router: Router, lake: Lake) -> None:
    """Wait until both nodes have the table as the lake has it."""
    newest, ends = head(lake, TABLE), time.monotonic() + 60
    while True:
        copies = [router.lake_state().hot_copies.get(node, {}).get(TABLE) for node in NODES]
        if all(copy is not None and copy.snapshot == newest for copy in copies):
            return
        assert time.monotonic() < ends, copies
        await router.fleet.wait_for_change(1.0)


async def trial(lake: Lake, project: Path) -> list[Answer]:
    plan = FleetConfig(
        project,
        nodes=2,
        node_memory=128 << 20,
        spark=False,
        replicator=("--replicas", "2"),
    )
    router = Router(Fleet(plan), QueryLimits(verify_share=0.0))
    await router.start()
    try:
        await until_both_hold(router, lake)
        fleet, own = router.fleet, os.getpriority(os.PRIO_PROCESS, 0)
        for nice, some in (
            (NODE_NICE, (fleet.replicator, *fleet.nodes.values())),
            (FILE_READER_NICE, fleet.direct),
        ):
            for pid in (each.pid or 0 for each in some):
                assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + nice)
                # Which counts only among processes of one session.
                assert (os.getsid(pid), os.getpgid(pid)) == (os.getsid(0), pid)
        answers = []
        for number, victim in enumerate(NODES):
            pid = router.fleet.nodes[victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            several = [router.answer(asked(10 * number + n), Caller()) for n in range(10)]
            answers += await asyncio.gather(*several)
            await until_both_hold(router, lake)
        return answers
    finally:
        await router.stop()


def test_a_node_dies_and_the_other_answers_hot(tmp_path: Path) -> None:
    lake = shop_lake.build(tmp_path / "p")
    answers = asyncio.run(trial(lake, tmp_path / "p"))
    newest = str(head(lake, TABLE))
    for number, answer in enumerate(answers):
        assert answer.rows.body == f"[{3 * PER_DAY},{number}]\n".encode()
        assert answer.provenance["engine"] == "hot", answer.provenance
        assert answer.provenance["tables"][TABLE]["snapshot"] == newest
