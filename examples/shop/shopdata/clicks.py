"""Click events: visits that go some way down the funnel, in Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shopdata.draws import Ints, instants, integers, padded, pick, text, uniform
from shopdata.world import HOUR, SECOND, World

STAGES = ("page_view", "product_view", "add_to_cart", "checkout", "purchase")
_PAGES = ("/", None, "/cart", "/checkout", "/thanks")
_REACH = (0.38, 0.70, 0.86, 0.92)  # share of visits that stop before each later stage


def events(
    world: World, first: int, count: int, span: tuple[int, int], piece: int = 50_000
) -> Iterator[pa.Table]:
    """Events first … first+count−1, visit by visit, with their instants inside the span."""
    low, high = span[0], span[1] - 2 * HOUR  # a visit may take a while
    visits = np.arange(count, dtype=np.int64)  # at most one a visit; cut below
    depth = np.searchsorted(_REACH, uniform(world.seed, "depth", first + visits))
    length = depth + 1 + integers(world.seed, "browse", first + visits, 0, 6)
    ends = np.cumsum(length)
    total = int(np.searchsorted(ends, count)) + 1 if count else 0
    for begin in range(0, total, max(piece // 5, 1)):
        visit = visits[begin : min(begin + piece // 5, total)]
        began = world.moments("visit", visit, 0, total, (low, high))
        at = first + int(ends[begin - 1] if begin else 0)
        table = _visits(world, first + visit, began, depth[visit], length[visit], at)
        yield table.slice(0, min(table.num_rows, first + count - at))


def _visits(
    world: World, visit: Ints, began: Ints, depth: Ints, length: Ints, first: int
) -> pa.Table:
    seed = world.seed
    owner = np.repeat(np.arange(len(visit)), length)
    starts = np.cumsum(length) - length
    number = first + np.arange(len(owner), dtype=np.int64)
    step = number - first - starts[owner]
    # The last events of a visit climb the funnel; those before are browsing.
    climb = depth[owner] - (length[owner] - 1 - step)
    browsing = (uniform(seed, "look", number) < 0.5) & (depth[owner] > 0)
    stage = np.where(climb > 0, climb, browsing.astype(np.int64))
    pause = (SECOND * (5 + 395 * uniform(seed, "pause", number) ** 2)).astype(np.int64)
    elapsed = np.cumsum(pause)
    at = began[owner] + elapsed - elapsed[starts][owner]
    user = np.floor(uniform(seed, "visitor", visit) ** 1.6 * world.customers).astype(np.int64)
    product = np.floor(uniform(seed, "seen", number) ** 2.0 * world.products).astype(np.int64)
    about = (stage == 1) | (stage == 2)
    seen = pc.if_else(about, padded("PROD-", product, 6), pa.scalar(None, pa.string()))
    device = pick(("mobile", "desktop", "tablet"), integers(seed, "device", visit, 0, 3))
    referrer = pick(("search", "email", "social", None), integers(seed, "referrer", visit, 0, 4))
    return pa.table(
        {
            "event_id": padded("EVT-", number, 12),
            "user_id": padded("CUST-", user[owner], 8),
            "event_type": pick(STAGES, stage),
            "event_ts": instants(at),
            "product_id": seen,
            "page": pc.coalesce(pick(_PAGES, stage), text("/product/", padded("", product, 6))),
            "referrer": referrer.take(pa.array(owner)),
            "device": device.take(pa.array(owner)),
        }
    )
