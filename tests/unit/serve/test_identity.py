"""Authentication: tokens, JWTs, and requests forged by web pages. Each attack is a test."""

from __future__ import annotations

import base64
import hashlib
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from tests.unit.serve.fixed_router import ROWS, FixedRouter, opened, serving

from thermocline.config import ServeSettings, load_settings
from thermocline.errors import BadInput, ConfigError, NotFound
from thermocline.serve.failures import Unauthenticated
from thermocline.serve.identity.authenticator import Authenticator, build_authenticator
from thermocline.serve.identity.token_store import PREFIX, TokenStore
from thermocline.serve.values import Caller

BODY = {"sql": "select id, text from silver.orders"}
SHARED = "0123456789abcdef0123456789abcdef"
ISSUER, AUDIENCE = "https://issuer.example", "thermocline"


def refused(call: Any, *arguments: Any) -> None:
    with pytest.raises(Unauthenticated) as caught:
        call(*arguments)
    assert "not valid" in caught.value.cause  # the same words for every reason


# Tokens -------------------------------------------------------------------------------------------


def test_a_token_is_kept_as_a_hash_for_its_owner_alone(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("dashboard", ["analyst", "analyst"])
    assert token.startswith(PREFIX)
    assert len(base64.urlsafe_b64decode(token.removeprefix(PREFIX) + "=")) == 32
    file = tmp_path / ".thermocline" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    assert token.removeprefix(PREFIX) not in file.read_text()
    assert hashlib.sha256(token.encode()).hexdigest() in file.read_text()
    assert (tmp_path / ".thermocline" / ".gitignore").read_text() == "*\n"
    assert tokens.find_caller(token) == Caller("dashboard", ("analyst",))
    assert tokens.find_caller(token + "x") is None
    assert tokens.find_caller(token[:-1]) is None
    assert tokens.find_caller("") is None
    assert tokens.find_caller(PREFIX + "\ud800") is None


def test_expiry_and_revocation_count_at_once(tmp_path: Path) -> None:
    running, elsewhere = TokenStore(tmp_path), TokenStore(tmp_path)
    short, long = elsewhere.create("short", days=0), elsewhere.create("long", days=1)
    assert running.find_caller(short) is None
    assert running.find_caller(long) == Caller("long")
    elsewhere.revoke("long")
    assert running.find_caller(long) is None
    assert [token.state(datetime.now(UTC)) for token in running.all()] == ["expired", "revoked"]
    with pytest.raises(NotFound):
        elsewhere.revoke("long")
    again = elsewhere.create("long")
    assert (running.find_caller(again), running.find_caller(long)) == (Caller("long"), None)
    (tmp_path / ".thermocline" / "tokens.json").unlink()
    assert running.find_caller(again) is None


def test_a_name_is_a_name_and_has_one_valid_token(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    for name in ("", "../x", "a b", "a\nb", "x" * 65, "ä", "-x", "anonymous"):
        with pytest.raises(BadInput):
            tokens.create(name)
        with pytest.raises(BadInput):
            tokens.create("fine", [name])
    tokens.create("one")
    with pytest.raises(BadInput, match="already"):
        tokens.create("one")
    assert [token.name for token in tokens.all()] == ["one"]


def test_tokens_made_at_once_are_all_kept(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=TokenStore(tmp_path).create, args=(f"t{n}",)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in TokenStore(tmp_path).all()} == {f"t{n}" for n in range(8)}


@pytest.mark.parametrize("damage", ["{", "[]", '{"tokens": [{"name": "x"}]}', "null", "\xff"])
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, damage: str) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("one")
    file = tmp_path / ".thermocline" / "tokens.json"
    file.write_text(damage, encoding="latin-1")
    assert tokens.find_caller(token) is None
    with pytest.raises(ConfigError):
        tokens.all()


def test_a_file_that_others_can_write_lets_nobody_in(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("one")
    (tmp_path / ".thermocline" / "tokens.json").chmod(0o666)
    assert TokenStore(tmp_path).find_caller(token) is None


def test_authorization_headers(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("ann", ["analyst"])
    who = Authenticator(tokens, open=True)
    caller = Caller("ann", ("analyst",))

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    assert who.authenticate([]) == Caller()
    assert who.authenticate([f"Bearer {token}"]) == who.authenticate([f"bearer {token}"]) == caller
    assert who.authenticate([basic(f"ann:{token}")]) == caller
    for wrong in (
        token, "Bearer", "Bearer ", "Bearer x", f"Token {token}", basic(f"bob:{token}"),
        basic(token), basic("ann:"), "Basic !!", "Basic " + base64.b64encode(b"\xff:x").decode(),
    ):  # fmt: skip
        refused(who.authenticate, [wrong])
    refused(who.authenticate, [f"Bearer {token}", f"Bearer {token}"])
    with pytest.raises(Unauthenticated, match="only callers with a token"):
        Authenticator(tokens).authenticate([])


def test_a_token_of_a_removed_role_is_refused(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("ann", ["analyst"])
    assert (
        Authenticator(tokens, roles=["analyst", "admin"]).authenticate([f"Bearer {token}"]).name
        == "ann"
    )
    refused(Authenticator(tokens, roles=["admin"]).authenticate, [f"Bearer {token}"])


# Who is let in by which settings ------------------------------------------------------------------


def by(tmp_path: Path, toml: str, **environ: str) -> Authenticator:
    (tmp_path / "thermocline.toml").write_text(toml)
    return build_authenticator(load_settings(tmp_path, None, environ))


def test_loopback_is_open_and_everything_else_needs_a_token(tmp_path: Path) -> None:
    assert by(tmp_path, "").open
    assert by(tmp_path, '[serve]\nhost = "::1"').open
    assert not by(tmp_path, "[serve]\ntokens_required = true").open
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.com"):
        with pytest.raises(ConfigError, match="would let every machine"):
            by(tmp_path, f'[serve]\nhost = "{host}"')
    TokenStore(tmp_path).create("one")
    assert not by(tmp_path, '[serve]\nhost = "0.0.0.0"').open
    assert by(tmp_path, "").open


def test_jwt_settings_ask_for_a_token_on_loopback_too(tmp_path: Path) -> None:
    toml = f'[serve.jwt]\nalgorithm = "HS256"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"'
    who = by(tmp_path, toml, THERMOCLINE_SERVE__JWT__SECRET=SHARED)
    assert not who.open
    claims = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": datetime.now(UTC) + timedelta(hours=1)
    }  # fmt: skip
    assert who.authenticate([f"Bearer {jwt.encode(claims, SHARED, 'HS256')}"]).name == "ann"


# Over HTTP ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = ServeSettings(hosts=("lake.example",))
    with serving(FixedRouter(), opened(tmp_path_factory.mktemp("p")), settings) as url:
        yield url


def test_every_page_but_three_asks_for_the_token(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create("ann")
    with serving(FixedRouter(), Authenticator(TokenStore(tmp_path))) as url, httpx.Client() as http:
        for path in ("/health", "/ready", "/openapi.json"):
            assert http.get(url + path).status_code == 200
        for path in ("/tables", "/nodes", "/metrics", "/explain?sql=select+1"):
            reply = http.get(url + path)
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"].startswith("Bearer")
            assert http.get(url + path, headers={"Authorization": "Bearer x"}).status_code == 401
            good = {"Authorization": f"Bearer {token}"}
            assert http.get(url + path, headers=good).status_code == 200
        assert http.post(f"{url}/query", json=BODY).status_code == 401
        good = {"Authorization": f"Bearer {token}", "Host": "any.example"}
        assert http.post(f"{url}/query", json=BODY, headers=good).json()["rows"] == ROWS
        TokenStore(tmp_path).revoke("ann")
        assert http.post(f"{url}/query", json=BODY, headers=good).status_code == 401


def test_a_token_in_the_address_is_refused(open_url: str, tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create("ann")
    for query in (f"token={token}", f"access_token={token}", "api_key=x", f"x={token}",
                  f"sql=select+1&Authorization=Bearer+{token}"):  # fmt: skip
        for path in ("/tables", "/explain", "/query", "/health"):
            reply = httpx.request("GET", f"{open_url}{path}?{query}")
            assert reply.status_code == 400
            assert "must not be part of a URL" in reply.json()["error"]["cause"]
            assert token not in reply.text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
     "", "[::1", "127.0.0.1@evil.example", "lake.example.evil.example", "169.254.169.254"],
)  # fmt: skip
def test_a_rebound_name_is_refused(open_url: str, host: str) -> None:
    for path in ("/health", "/tables", "/openapi.json"):
        assert httpx.get(open_url + path, headers={"Host": host}).status_code == 403
    reply = httpx.post(f"{open_url}/query", json=BODY, headers={"Host": host})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.8.9.1", "[::1]:80", "lake.example"]
)
def test_our_own_names_are_known(open_url: str, host: str) -> None:
    reply = httpx.post(f"{open_url}/query", json=BODY, headers={"Host": host})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"},
     {"Origin": ""}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)  # fmt: skip
def test_other_sites_are_refused(open_url: str, headers: dict[str, str]) -> None:
    for reply in (
        httpx.post(f"{open_url}/query", json=BODY, headers=headers),
        httpx.get(f"{open_url}/explain", params=BODY, headers=headers),
        httpx.options(f"{open_url}/query", headers=headers),
    ):
        assert reply.status_code == 403
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_our_own_page_may_ask(open_url: str) -> None:
    headers = {"Origin": open_url, "Sec-Fetch-Site": "same-origin"}
    assert httpx.post(f"{open_url}/query", json=BODY, headers=headers).status_code == 200
