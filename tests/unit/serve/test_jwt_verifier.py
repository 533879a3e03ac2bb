"""JWTs: accepted claims, and attempts to choose how a token is verified. Each attack is a test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from thermocline.config import JwtSettings, Secret
from thermocline.errors import ConfigError
from thermocline.serve.failures import Unauthenticated
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.identity.jwt_verifier import JwtVerifier
from thermocline.serve.identity.token_store import TokenStore
from thermocline.serve.values import Caller

SHARED = "0123456789abcdef0123456789abcdef"
ISSUER, AUDIENCE = "https://issuer.example", "thermocline"


def pem(key: Any) -> str:
    made: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return made.decode()


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, rsa_key: rsa.RSAPrivateKey) -> JwtVerifier:
    """RS256 by two keys, of which the tests hold one."""
    other = rsa.generate_private_key(65537, 2048)
    tmp_path = tmp_path_factory.mktemp("keys")
    (tmp_path / "one.pem").write_text(pem(rsa_key.public_key()))
    (tmp_path / "two.pem").write_text(pem(other.public_key()))
    keys = {"one": "one.pem", "two": "two.pem"}
    return JwtVerifier(JwtSettings("RS256", ISSUER, AUDIENCE, keys=keys), tmp_path)


def claims(**changed: Any) -> dict[str, Any]:
    """Good claims, but for the changed ones; a difference of time is from now on."""
    now = datetime.now(UTC)
    changed = {n: now + v if isinstance(v, timedelta) else v for n, v in changed.items()}
    good = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "roles": ["analyst"], "iat": now,
        "exp": now + timedelta(minutes=5),
    }  # fmt: skip
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def refused(call: Any, *arguments: Any) -> None:
    with pytest.raises(Unauthenticated) as caught:
        call(*arguments)
    assert "not valid" in caught.value.cause  # the same words for every reason


def test_a_good_jwt(signed: JwtVerifier, rsa_key: rsa.RSAPrivateKey, tmp_path: Path) -> None:
    token = jwt.encode(claims(), rsa_key, "RS256", headers={"kid": "one"})
    caller = Caller("ann", ("analyst",))
    assert signed.find_caller(token) == caller
    assert Authenticator(TokenStore(tmp_path), signed).authenticate([f"Bearer {token}"]) == caller
    refused(Authenticator(TokenStore(tmp_path)).authenticate, [f"Bearer {token}"])


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": timedelta(seconds=-5)}, {"exp": None}, {"exp": "soon"},
        {"nbf": timedelta(minutes=5)}, {"iat": timedelta(minutes=5)},
        {"aud": "other"}, {"aud": None}, {"aud": ["a", "b"]}, {"aud": {}},
        {"iss": "https://evil.example"}, {"iss": None}, {"iss": [ISSUER]},
        {"sub": None}, {"sub": ""}, {"sub": "a\nb"}, {"sub": 7},
        {"roles": {"admin": True}}, {"roles": [1]}, {"roles": 3},
    ],
)  # fmt: skip
def test_claims_that_are_not_good(
    signed: JwtVerifier, rsa_key: rsa.RSAPrivateKey, changed: dict[str, Any]
) -> None:
    given = claims(**changed)
    for name in ("sub", "iss"):
        given[name] = given.get(name)
        if given[name] is None:
            del given[name]
    refused(signed.find_caller, _encoded(given, rsa_key, {"kid": "one"}))


def _encoded(given: dict[str, Any], key: Any, header: dict[str, Any], alg: str = "RS256") -> str:
    """A token as an attacker would make it, without a library's kind checks."""
    numbers = {
        name: int(value.timestamp()) if isinstance(value, datetime) else value
        for name, value in given.items()
    }
    parts = [{"alg": alg, "typ": "JWT", **header}, numbers]
    text = b".".join(_b64(json.dumps(part).encode()) for part in parts)
    signature = jwt.get_algorithm_by_name(alg).sign(text, key) if key is not None else b""
    return (text + b"." + _b64(signature)).decode()


def _b64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


@pytest.mark.parametrize(
    "header",
    [
        {}, {"kid": "three"}, {"kid": "two"}, {"kid": "../../../dev/null"}, {"kid": "/dev/null"},
        {"kid": "one' or 1=1"}, {"kid": None}, {"kid": 1}, {"kid": ["one"]}, {"kid": "one.pem"},
        {"kid": "one", "crit": ["exp"]}, {"kid": "one", "crit": []},
        {"kid": "one", "jku": "https://evil.example/keys"},
        {"kid": "one", "x5u": "https://evil.example/cert"}, {"kid": "one", "x5c": ["MII"]},
        {"kid": "one", "b64": False}, {"kid": "one", "zip": "DEF"},
    ],
)  # fmt: skip
def test_headers_that_choose_the_key_or_the_rules(
    signed: JwtVerifier, rsa_key: rsa.RSAPrivateKey, header: dict[str, Any]
) -> None:
    refused(signed.find_caller, _encoded(claims(), rsa_key, header))


def test_a_key_inside_the_token(signed: JwtVerifier) -> None:
    mine = rsa.generate_private_key(65537, 2048)
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(mine.public_key()))
    refused(signed.find_caller, _encoded(claims(), mine, {"kid": "one", "jwk": key}))
    refused(signed.find_caller, _encoded(claims(), mine, {"kid": "one"}))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", "HS256", "RS512", "PS256"])
def test_alg_none_and_others(signed: JwtVerifier, alg: str) -> None:
    parts = [{"alg": alg, "typ": "JWT", "kid": "one"}, claims(iat=None, exp=9_999_999_999)]
    text = b".".join(_b64(json.dumps(part).encode()) for part in parts).decode()
    for signature in ("", "AAAA"):
        refused(signed.find_caller, f"{text}.{signature}")
    refused(signed.find_caller, text)


def test_rs256_verified_as_hs256(signed: JwtVerifier, rsa_key: rsa.RSAPrivateKey) -> None:
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "one"}, claims(iat=None, exp=9_999_999_999)]
    text = b".".join(_b64(json.dumps(part).encode()) for part in parts)
    public = pem(rsa_key.public_key()).encode()
    for secret in (public, public.strip(), b"", b"one.pem"):
        signature = hmac.new(secret, text, hashlib.sha256).digest()
        refused(signed.find_caller, (text + b"." + _b64(signature)).decode())


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b.c", "e30.e30.", "." * 9000, "\ud800.a.b", "ü.ü.ü", "[" * 3000]
)
def test_garbage(signed: JwtVerifier, token: str) -> None:
    refused(signed.find_caller, token)


def test_a_tampered_signature(signed: JwtVerifier, rsa_key: rsa.RSAPrivateKey) -> None:
    head, payload, signature = jwt.encode(claims(), rsa_key, "RS256", headers={"kid": "one"}).split(
        "."
    )
    other = _b64(json.dumps(claims(sub="admin", iat=None, exp=9_999_999_999)).encode()).decode()
    refused(signed.find_caller, f"{head}.{other}.{signature}")
    refused(signed.find_caller, f"{head}.{payload}.")


def test_hs256_and_es256(tmp_path: Path) -> None:
    shared = JwtVerifier(JwtSettings("HS256", ISSUER, AUDIENCE, Secret(SHARED)), tmp_path)
    assert shared.find_caller(jwt.encode(claims(), SHARED, "HS256")).name == "ann"
    refused(shared.find_caller, jwt.encode(claims(), SHARED[::-1], "HS256"))
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ec.pem").write_text(pem(key.public_key()))
    curve = JwtVerifier(JwtSettings("ES256", ISSUER, AUDIENCE, keys={"k": "ec.pem"}), tmp_path)
    assert curve.find_caller(jwt.encode(claims(roles="a b"), key, "ES256")).roles == ("a", "b")
    refused(curve.find_caller, jwt.encode(claims(), SHARED, "HS256"))


def test_settings_that_leave_a_gap_do_not_start(tmp_path: Path) -> None:
    small = rsa.generate_private_key(65537, 1024)
    curve = ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "small.pem").write_text(pem(small.public_key()))
    (tmp_path / "p384.pem").write_text(pem(curve.public_key()))
    private = small.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "private.pem").write_bytes(private)
    both = (ISSUER, AUDIENCE)
    for wrong in (
        JwtSettings("RS256", None, AUDIENCE, keys={"k": "small.pem"}),
        JwtSettings("RS256", ISSUER, None, keys={"k": "small.pem"}),
        JwtSettings("RS256", *both),
        JwtSettings("RS256", *both, keys={"k": "missing.pem"}),
        JwtSettings("RS256", *both, keys={"k": "small.pem"}),
        JwtSettings("RS256", *both, keys={"k": "private.pem"}),
        JwtSettings("RS256", *both, keys={"k": "p384.pem"}),
        JwtSettings("RS256", *both, Secret(SHARED), keys={"k": "p384.pem"}),
        JwtSettings("ES256", *both, keys={"k": "p384.pem"}),
        JwtSettings("HS256", *both),
        JwtSettings("HS256", *both, Secret("short")),
        JwtSettings("HS256", *both, Secret(SHARED), keys={"k": "small.pem"}),
    ):
        with pytest.raises(ConfigError) as caught:
            JwtVerifier(wrong, tmp_path)
        assert caught.value.next_step
        assert SHARED not in str(caught.value.as_dict())
