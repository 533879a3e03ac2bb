"""What the end-to-end tests compare with."""

from __future__ import annotations

import pytest
from tests.e2e.shop_project import Embedded, build_embedded


@pytest.fixture(scope="session")
def embedded_shop(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    """The small shop, built on the embedded default in this process."""
    return build_embedded(tmp_path_factory.mktemp("embedded") / "shop")
