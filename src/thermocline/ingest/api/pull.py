"""Records of an API, paged through by dlt's rest_api.

dlt only pulls: it has no destination, keeps no state and writes no file. It receives the start
position, and other modules validate the records that it yields.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, ConfigError, Permanent, ThermoclineError, Transient
from thermocline.ingest.api.position import ApiPosition
from thermocline.ingest.api.session import open_session
from thermocline.ingest.api.source import ApiSource
from thermocline.ingest.egress_policy import EgressPolicy, parse_origin
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, safe_first_line

if TYPE_CHECKING:
    from requests import Session

    from thermocline.config import Settings


def pull_items(
    api: ApiSource, start: ApiPosition, policy: EgressPolicy
) -> Generator[Any, None, None]:
    """Yield the items of the landing resource from the start position on, as parsed JSON."""
    rest_api_resources = _load_rest_api()
    with open_session(policy, api.origins, api.response_limits) as session:
        config = _build_config(api, start, session)
        try:
            resources = {each.name: each for each in rest_api_resources(config)}
            yield from resources[api.resource]
        except Exception as error:
            raise _translate_error(api, error) from error


def _load_rest_api() -> Any:
    """Import dlt's rest_api with its telemetry and warnings turned off."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    os.environ["RUNTIME__LOG_LEVEL"] = "CRITICAL"
    try:
        from dlt.sources.rest_api import rest_api_resources
    except ImportError as error:
        raise ConfigError(
            "API sources need dlt, which is not installed.",
            "Install it: pip install 'thermocline[api]'.",
        ) from error
    return rest_api_resources


def _build_config(api: ApiSource, start: ApiPosition, session: Session) -> dict[str, Any]:
    client = {**reveal(api.client), "base_url": api.base_url, "session": session}
    _use_session(client, session)
    resources = [_build_resource(api, each, start, session) for each in reveal(api.resources)]
    config: dict[str, Any] = {"client": client, "resources": resources}
    if api.defaults:
        config["resource_defaults"] = copy.deepcopy(reveal(api.defaults))
    return config


def _build_resource(
    api: ApiSource, resource: dict[str, Any], start: ApiPosition, session: Session
) -> dict[str, Any]:
    resource = copy.deepcopy(resource)
    endpoint = resource.get("endpoint")
    if isinstance(endpoint, dict):
        _use_session(endpoint, session)
    if resource["name"] == api.resource and api.cursor is not None:
        resource["endpoint"]["incremental"] = {
            **resource["endpoint"]["incremental"],
            "initial_value": api.cursor.initial if start.cursor is None else start.cursor,
            # dlt must not drop records: one without a cursor goes to quarantine.
            "on_cursor_value_missing": "include",
        }
    return resource


def _use_session(settings: dict[str, Any], session: Session) -> None:
    """Fetch OAuth tokens through the same session."""
    auth = settings.get("auth")
    if isinstance(auth, dict) and auth.get("type") == "oauth2_client_credentials":
        settings["auth"] = {**auth, "session": session}


def _translate_error(api: ApiSource, error: BaseException) -> ThermoclineError:
    """Translate an error that dlt and requests have wrapped, possibly several times."""
    from dlt.common.exceptions import DictValidationException
    from requests import HTTPError
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import RequestException, Timeout

    chain = list(_cause_chain(error))
    for each in chain:
        match each:
            case ThermoclineError():
                return each
            case HTTPError():
                return _translate_status(api, each)
            case NoConnection() | Timeout():
                return Transient(
                    f"{_describe_resource(api)} cannot be reached: {safe_first_line(each)}",
                    "Run again.",
                )
            case RequestException():
                return BadInput(
                    f"{_describe_resource(api)} cannot be pulled: {safe_first_line(each)}",
                    "Fix the source.",
                )
            case DictValidationException():
                return ConfigError(
                    f"{one_line(api.resource)}: {safe_first_line(each)}",
                    "Fix the source; see the documentation of dlt's rest_api.",
                )
    return Permanent(
        f"{_describe_resource(api)} cannot be pulled: "
        f"{type(chain[-1]).__name__}: {safe_first_line(chain[-1])}",
        "Check the resource's paginator, data_selector and incremental.",
    )


def _translate_status(api: ApiSource, error: Any) -> ThermoclineError:
    status = error.response.status_code
    reason = one_line(str(error.response.reason or ""))
    cause = f"{_describe_resource(api)} answered {status} {reason}".strip()
    if status == 429 or status >= 500:
        return Transient(f"{cause}, again and again.", "Run again later.", status=status)
    if status in {401, 403}:
        return BadInput(f"{cause}.", "Check the secret and the type under auth.", status=status)
    return BadInput(f"{cause}.", "Check the path and the params of the endpoint.", status=status)


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    visited: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in visited:
        visited.add(id(inner))
        yield inner
        inner = inner.__cause__ or inner.__context__


def _describe_resource(api: ApiSource) -> str:
    return f"{one_line(api.resource)} at {parse_origin(api.base_url)}"


def load_egress_policy(settings: Settings) -> EgressPolicy:
    """Return the egress policy of the project's settings."""
    return EgressPolicy.from_settings(settings.api.allow_private, settings.api.allow_networks)
