"""Questions by chance over the awkward lake and the shop's tables, each with one right answer."""

from __future__ import annotations

from tests.integration.serve.maker.queries import Maker
from tests.integration.serve.maker.shop import ShopMaker

__all__ = ["Maker", "ShopMaker"]
