"""Statistics files: a footer that names a place is written again, what is not known refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thermocline.lake import puffin

THETA = "apache-datasketches-theta-v1"


def made(*blobs: tuple[str, bytes, dict[str, str]], flags: bytes = bytes(4), **said: Any) -> bytes:
    """A Puffin file with these blobs."""
    content, listed = b"PFA1", []
    for kind, body, properties in blobs:
        about = {"type": kind, "fields": [1], "snapshot-id": 1, "sequence-number": 1}
        place = {"offset": len(content), "length": len(body)}
        listed.append({**about, **place, "properties": properties})
        content += body
    payload = json.dumps({"blobs": listed, **said}).encode()
    return content + b"PFA1" + payload + len(payload).to_bytes(4, "little") + flags + b"PFA1"


def map_location(text: str) -> str:
    return text.replace("file:/old", "file:/a/much/longer/new")


def test_a_footer_that_names_an_old_place_names_the_new_one() -> None:
    file = made((THETA, b"sketch", {"ndv": "7", "from": "file:/old/x"}), (THETA, b"more", {}),
                properties={"created-by": "us", "home": "file:/old"})  # fmt: skip
    found = puffin.rewrite_footer(file, lambda text: "/old" in text, map_location)
    assert found is not None
    assert found.properties == [{"ndv": "7", "from": "file:/a/much/longer/new/x"}, {}]
    footer = puffin.read_footer(found.content)
    assert len(found.content) - footer.start == found.footer
    first, second = footer.content["blobs"]
    for blob, body in ((first, b"sketch"), (second, b"more")):
        assert found.content[blob["offset"] : blob["offset"] + blob["length"]] == body
    assert footer.content["properties"] == {"created-by": "us", "home": "file:/a/much/longer/new"}
    assert b"file:/old" not in found.content


def test_a_footer_without_a_place_is_left_as_it_is() -> None:
    file = made((THETA, b"sketch", {"ndv": "7"}))
    assert puffin.rewrite_footer(file, lambda text: "/old" in text, map_location) is None


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (made(("deletion-vector-v1", b"bits", {})), "deletion-vector-v1"),
        (made((THETA, b"x", {}), flags=b"\x01\0\0\0"), "compressed"),
        (made((THETA, b"x", {}))[:-1], "not a Puffin"),
        (b"", "not a Puffin"),
        (b"PFA1" + (500).to_bytes(4, "little") + bytes(4) + b"PFA1", "not a Puffin"),
    ],
)
def test_unknown_content_is_refused(file: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        puffin.rewrite_footer(file, lambda text: False, map_location)
