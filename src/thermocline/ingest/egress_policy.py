"""Which schemes, hosts and addresses a pull may connect to.

Other people may control a source's file, a redirect, a link to the next page and a DNS entry, so
none of them is trusted. A name is resolved here, all its addresses are checked, and the connection
uses exactly those addresses: there is no second lookup that could return a different result.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from thermocline.errors import BadInput, Transient
from thermocline.telemetry import one_line

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = {"http": 80, "https": 443}
HOW_TO_ALLOW = (
    "If that is meant, set ingest.api.allow_private = true, or name its network in "
    "ingest.api.allow_networks."
)
# `is_global` of older Python versions treats some of these as public.
_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
        "::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20",
        "5f00::/16", "fec0::/10",
    )
)  # fmt: skip
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(BadInput):
    """An address, host or scheme that a pull may not reach."""

    code = "address-refused"


@dataclass(frozen=True)
class UrlOrigin:
    """Scheme, host and port of a URL."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def covers(self, other: UrlOrigin) -> bool:
        """Whether access to this origin includes the other: the same one, or its HTTPS variant."""
        if self == other:
            return True
        upgraded = (self.scheme, other.scheme) == ("http", "https")
        default_ports = self.port == PORTS["http"] and other.port == PORTS["https"]
        return upgraded and default_ports and self.host == other.host


def parse_origin(url: str) -> UrlOrigin:
    """Return the origin of a URL. Refuse schemes other than HTTP(S), and embedded credentials."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _make_refusal(
            "An address cannot be read as a URL.", "Write https://host/path."
        ) from None
    scheme = parts.scheme.lower()
    if scheme not in PORTS:
        raise _make_refusal(
            f"{_format(scheme) or 'An address without a scheme'} is not reached by an API pull.",
            "Only http:// and https:// are.",
        )
    if not parts.hostname:
        raise _make_refusal(f"{_redact(parts)} names no host.", "Write https://host/path.")
    if parts.username or parts.password:
        raise _make_refusal(
            f"The address of {_format(parts.hostname)} carries a user or password.",
            "Give them under auth, the password as {secret: NAME}.",
        )
    return UrlOrigin(scheme, parts.hostname.lower().rstrip("."), port or PORTS[scheme])


@dataclass(frozen=True)
class EgressPolicy:
    """The addresses that a pull may connect to: public ones, and those the settings allow."""

    allow_private: bool = False
    networks: tuple[Network, ...] = ()

    @classmethod
    def from_settings(cls, allow_private: bool, networks: Sequence[str]) -> EgressPolicy:
        """Return the policy of the settings."""
        return cls(allow_private, tuple(ipaddress.ip_network(each) for each in networks))

    def explain_refusal(self, address: Address) -> str | None:
        """Return the kind of an address that is not allowed, else None.

        An IPv6 address that embeds an IPv4 address is treated as that address.
        """
        for each in _effective_addresses(address):
            kind = _classify(each)
            if (
                kind is None
                or self.allow_private
                or any(_is_inside(each, net) for net in self.networks)
            ):
                continue
            return kind
        return None

    def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host in the order to try them. Refuse if any is not allowed."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise _make_refusal(f"{_format(host)} cannot be a host name.", "Fix the URL.") from None
        except socket.gaierror as error:
            raise Transient(
                f"The name {_format(host)} cannot be resolved: {error.strerror}.",
                "Check the URL and the network, then run again.",
            ) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for text in addresses:
            kind = self.explain_refusal(ipaddress.ip_address(text))
            if kind is not None:
                is_literal = text == host
                subject = (
                    _format(host) if is_literal else f"{_format(host)} resolves to {text}, which"
                )
                raise _make_refusal(f"{subject} is {kind} and is not reached.", HOW_TO_ALLOW)
        return addresses


def _classify(address: Address) -> str | None:
    """Return why an address is not public, or None if it is."""
    kinds = (
        ("the unspecified address", address.is_unspecified),
        ("a loopback address", address.is_loopback),
        ("a link-local address", address.is_link_local),
        ("a multicast address", address.is_multicast),
        ("a reserved address", any(_is_inside(address, net) for net in _NEVER_PUBLIC)),
        ("a private address", address.is_private),
        ("a reserved address", address.is_reserved or not address.is_global),
    )
    return next((kind for kind, holds in kinds if holds), None)


def _effective_addresses(address: Address) -> Iterator[Address]:
    """Yield the addresses embedded in an IPv6 address, or else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    address = ipaddress.IPv6Address(int(address))  # without its zone
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    found = [each for each in inner if each is not None]
    yield from found or [address]


def _is_inside(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _redact(parts: SplitResult) -> str:
    return _format(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl())


def _format(text: str) -> str:
    return one_line(text)[:200]


def _make_refusal(cause: str, next_step: str) -> AddressRefused:
    return AddressRefused(cause, next_step)
