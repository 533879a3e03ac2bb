"""The `token` commands: create, list and revoke the access tokens of a project's server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Group, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.serve.identity.token_store import TokenStore


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke the access tokens of `thermo serve`."""


@token.command("create", cls=Command)
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="A role of the caller (repeatable)."
)
@click.option("--days", type=click.IntRange(1, 36500), metavar="N",
              help="Days until it expires; by default it never does.")  # fmt: skip
@pass_invocation
def create(invocation: Invocation, name: str, roles: tuple[str, ...], days: int | None) -> None:
    """Create a token for NAME and print it. It is not stored and cannot be shown again."""
    made = _open_tokens(invocation).create(name, roles, days)
    shown = {"name": name, "roles": list(roles), "days": days, "token": made}
    invocation.show(shown, lambda _: output.line(made))


@token.command("list", cls=Command)
@pass_invocation
def list_tokens(invocation: Invocation) -> None:
    """List current, expired and revoked tokens, without their values."""
    now = datetime.now(UTC)
    shown = [
        {
            "name": each.name,
            "roles": list(each.roles),
            "state": each.state(now),
            "created": each.created,
            "expires": each.expires,
        }
        for each in _open_tokens(invocation).all()
    ]
    invocation.show(shown, _render_tokens)


def _render_tokens(tokens: Sequence[dict[str, Any]]) -> RenderableType:
    if not tokens:
        return output.line("There are no tokens yet.", "Next:  thermo token create NAME")
    return output.table(
        ["name", "roles", "state", "created", "expires"],
        [
            [
                each["name"],
                " ".join(each["roles"]),
                each["state"],
                output.ago(each["created"]),
                each["expires"].strftime("%Y-%m-%d") if each["expires"] else "never",
            ]
            for each in tokens
        ],
    )


@token.command("revoke", cls=Command)
@click.argument("name")
@pass_invocation
def revoke(invocation: Invocation, name: str) -> None:
    """Revoke the token of NAME, on running servers too."""
    _open_tokens(invocation).revoke(name)
    invocation.show({"revoked": name}, lambda it: output.line(f"revoked {it['revoked']}"))


def _open_tokens(invocation: Invocation) -> TokenStore:
    from thermocline.serve.identity.token_store import TokenStore

    return TokenStore(invocation.settings().project)
