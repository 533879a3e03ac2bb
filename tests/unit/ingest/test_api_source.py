"""What a source of kind api may say, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thermocline.errors import ConfigError, ContractError
from thermocline.ingest.api.source import ApiSource
from thermocline.ingest.egress_policy import UrlOrigin
from thermocline.ingest.secret import find_literal_secret, reveal
from thermocline.ingest.source import load_sources
from thermocline.telemetry import redact

WHOLE = """\
name: issues
kind: api
target: bronze.raw_issues
base_url: https://api.example.com/v1/
auth: {type: bearer, token: {secret: ISSUES_TOKEN}}
headers: {Accept: application/json}
hosts: [https://files.example.com]
every: 60
timeout: 20
maxResponseBytes: 1000000
resources:
  - name: repos
    endpoint: {path: repos}
  - name: issues
    primary_key: [repo, id]
    endpoint:
      path: "repos/{resources.repos.id}/issues"
      incremental: {cursor_path: updated_at, initial_value: "2026-01-01", row_order: asc}
resource: issues
"""


def load(folder: Path, text: str) -> ApiSource:
    (folder / "sources").mkdir(exist_ok=True)
    (folder / "sources" / "issues.yaml").write_text(text)
    found: ApiSource = load_sources(folder / "sources")["issues"].connection
    return found


def refusal(folder: Path, old: str, new: str) -> str:
    assert old in WHOLE
    with pytest.raises(ContractError) as refused:
        load(folder, WHOLE.replace(old, new))
    return str(refused.value)


def test_a_whole_source(tmp_path: Path) -> None:
    api = load(tmp_path, WHOLE)
    assert (api.base_url, api.resource) == ("https://api.example.com/v1/", "issues")
    assert [origin.host for origin in api.origins] == ["api.example.com", "files.example.com"]
    assert (api.key, api.every) == (("repo", "id"), 60)
    assert (api.response_limits.seconds, api.response_limits.bytes) == (20, 1_000_000)
    assert api.cursor is not None
    assert (api.cursor.path, api.cursor.initial, api.cursor.ascending) == (
        "updated_at", "2026-01-01", True,
    )  # fmt: skip


def test_a_token_url_is_a_host_that_the_source_names(tmp_path: Path) -> None:
    oauth = (
        "auth: {type: oauth2_client_credentials, access_token_url: 'https://login.example.com/t',"
        " client_id: me, client_secret: {secret: S}}"
    )
    text = WHOLE.replace("auth: {type: bearer, token: {secret: ISSUES_TOKEN}}", oauth)
    assert UrlOrigin("https", "login.example.com", 443) in load(tmp_path, text).origins


REFUSALS = {
    "a secret in the clear": ("token: {secret: ISSUES_TOKEN}", "token: abcdef"),
    "headers.Authorization": ("{Accept: application/json}", "{Authorization: Bearer x}"),
    "only http:// and https:// are": ("https://api.example.com/v1/", "file:///etc/"),
    "carries a user or password": ("https://api.example.com/v1/", "https://me:pw@example.com/"),
    "there is no": ("resource: issues", "resource: pulls"),
    "is missing": ("resource: issues\n", ""),
    "needs an initial_value": (', initial_value: "2026-01-01"', ""),
    "needs a cursor_path": ("cursor_path: updated_at, ", ""),
    "is asc or desc": ("row_order: asc", "row_order: up"),
    '"lag" is not in this version': ("row_order: asc", "lag: 60"),
    'did you mean "base_url"': ("base_url:", "base_ur:"),
    "is not between": ("timeout: 20", "timeout: 0"),
    "must be a field or a list": ("[repo, id]", "{a: b}"),
}


@pytest.mark.parametrize(("said", "change"), REFUSALS.items())
def test_what_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, said: str, change: tuple[str, str]
) -> None:
    told = refusal(tmp_path, *change)
    assert said in told.lower() if said.islower() else said in told
    assert "sources/issues.yaml:" in told
    assert "abcdef" not in told
    assert "pw@" not in told


def test_a_secret_is_the_environments_and_hidden_from_output() -> None:
    data: dict[str, Any] = {"auth": [{"token": {"secret": "T"}}, {"user": "me"}]}
    found = reveal(data, {"T": "canary-4471"})
    assert found == {"auth": [{"token": "canary-4471"}, {"user": "me"}]}
    assert redact("it was canary-4471") == "it was ***"
    with pytest.raises(ConfigError, match="The secret T is not set"):
        reveal(data, {})


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"a": {"password": "x"}}, ("a", "password")),
        ({"a": [{"ok": 1}, {"api_key": "x"}]}, ("a", 1, "api_key")),
        ({"headers": {"X-Auth-Token": "x"}}, ("headers", "X-Auth-Token")),
        ({"a": {"password": {"secret": "X"}}}, None),
        ({"token_url": "x", "password": ""}, None),
    ],
)
def test_a_secret_in_the_clear_is_found_wherever_it_stands(data: Any, place: Any) -> None:
    assert find_literal_secret(data) == place
