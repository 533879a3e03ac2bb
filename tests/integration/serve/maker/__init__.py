"""Questions by chance over the awkward lake, each with one right answer."""

from __future__ import annotations

from tests.integration.serve.maker.queries import Maker

__all__ = ["Maker"]
