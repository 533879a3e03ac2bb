"""Which schemes, hosts and addresses a pull may reach."""

from __future__ import annotations

import ipaddress

import pytest

from thermocline.errors import Transient
from thermocline.ingest.egress_policy import AddressRefused, EgressPolicy, UrlOrigin, parse_origin

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
REFUSED = {
    "127.0.0.1": "loopback",
    "127.8.9.10": "loopback",
    "::1": "loopback",
    "0.0.0.0": "unspecified",
    "::": "unspecified",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "fc00::1": "private",
    "fd12:3456::1": "private",
    "169.254.169.254": "link-local",
    "fe80::1": "link-local",
    "fe80::1%2": "link-local",
    "100.64.0.1": "reserved",
    "198.18.0.1": "reserved",
    "192.88.99.1": "reserved",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "255.255.255.255": "reserved",
    "240.0.0.1": "reserved",
    "fec0::1": "reserved",
    "2001:db8::1": "reserved",
    # IPv6 addresses that are IPv4 ones in disguise: mapped, compatible, NAT64, 6to4, Teredo.
    "::ffff:127.0.0.1": "loopback",
    "::ffff:169.254.169.254": "link-local",
    "::ffff:a00:1": "private",
    "::127.0.0.1": "reserved",
    "64:ff9b::a9fe:a9fe": "link-local",
    "64:ff9b:1::1": "reserved",
    "2002:7f00:1::": "loopback",
    "2002:a9fe:a9fe::": "link-local",
    "2001:0:808:808:0:0:80ff:fffe": "loopback",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_reached(address: str) -> None:
    assert EgressPolicy().explain_refusal(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(("address", "kind"), REFUSED.items())
def test_other_addresses_are_refused_by_kind(address: str, kind: str) -> None:
    said = EgressPolicy().explain_refusal(ipaddress.ip_address(address))
    assert said is not None
    assert kind in said
    assert EgressPolicy(allow_private=True).explain_refusal(ipaddress.ip_address(address)) is None


def test_only_the_named_networks_are_allowed() -> None:
    reach = EgressPolicy.from_settings(False, ["10.0.0.0/8", "fd00::/8"])
    assert reach.explain_refusal(ipaddress.ip_address("10.9.8.7")) is None
    assert reach.explain_refusal(ipaddress.ip_address("::ffff:10.9.8.7")) is None
    assert reach.explain_refusal(ipaddress.ip_address("fd00::1")) is None
    assert reach.explain_refusal(ipaddress.ip_address("192.168.0.1")) == "a private address"
    assert reach.explain_refusal(ipaddress.ip_address("169.254.169.254")) == "a link-local address"


@pytest.mark.parametrize(
    "host", ["localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::1", "0"]
)
def test_every_spelling_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        EgressPolicy().resolve(host, 80)
    assert "ingest.api.allow_private" in refused.value.next_step


def test_an_allowed_name_gives_the_addresses_to_connect_to() -> None:
    assert "127.0.0.1" in EgressPolicy(allow_private=True).resolve("localhost", 80)


def test_a_name_that_has_one_private_address_among_public_ones_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: answer)
    with pytest.raises(AddressRefused, match=r"api\.example resolves to 10\.0\.0\.1"):
        EgressPolicy().resolve("api.example", 80)


def test_an_unknown_name_may_be_tried_again() -> None:
    with pytest.raises(Transient, match=r"nowhere\.invalid"):
        EgressPolicy().resolve("nowhere.invalid", 80)


@pytest.mark.parametrize(
    "host", ["a" * 300, "a..b", ".", "\udce4.example", "ex\x00ample", "a b\r\nX: y"]
)
def test_an_impossible_name_is_an_error_of_ours(host: str) -> None:
    with pytest.raises((AddressRefused, Transient)) as refused:
        EgressPolicy().resolve(host, 80)
    assert "\n" not in refused.value.cause


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.com/x", "gopher://127.0.0.1/", "//example.com/x",
        "example.com", "", "https://", "http://:80/", "javascript:alert(1)", "http://[::1",
        "http://host:99999/", "https://user:pw@example.com/", "https://token@example.com/",
        "s3://bucket/x", "unix:/run/docker.sock", "data:text/plain,x",
    ],
)  # fmt: skip
def test_what_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        parse_origin(url)
    assert "pw" not in str(refused.value)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert parse_origin("HTTPS://API.Example.com./v1?x=1") == UrlOrigin(
        "https", "api.example.com", 443
    )
    assert parse_origin("http://[2001:db8::1]:8080/") == UrlOrigin("http", "2001:db8::1", 8080)
    assert str(parse_origin("http://[2001:db8::1]:8080/")) == "http://[2001:db8::1]:8080"
    assert str(parse_origin("https://example.com/x")) == "https://example.com"


def test_an_origin_covers_itself_and_its_encrypted_self_only() -> None:
    plain, secure = parse_origin("http://example.com"), parse_origin("https://example.com")
    assert plain.covers(plain)
    assert plain.covers(secure)
    assert not secure.covers(plain)
    assert not plain.covers(parse_origin("http://example.com:8080"))
    assert not secure.covers(parse_origin("https://example.com.evil.org"))
    assert not plain.covers(parse_origin("https://example.com:8443"))
