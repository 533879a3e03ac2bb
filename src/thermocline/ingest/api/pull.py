"""Records of an API, as dlt's rest_api pages through them.

dlt only pulls: it has no destination, keeps no state and writes no file here. Where to begin is
told to it, and what it yields is judged elsewhere.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, ConfigError, Permanent, ThermoclineError, Transient
from thermocline.ingest.api.position import Position
from thermocline.ingest.api.session import open_session
from thermocline.ingest.api.source import ApiSource
from thermocline.ingest.egress_policy import EgressPolicy, parse_origin
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from requests import Session

    from thermocline.config import Settings


def items(api: ApiSource, start: Position, reach: EgressPolicy) -> Generator[Any, None, None]:
    """Every item of the resource that lands, from the start position on, as parsed JSON."""
    rest_api_resources = _quiet_dlt()
    with open_session(reach, api.origins, api.bounds) as session:
        config = _config(api, start, session)
        try:
            resources = {each.name: each for each in rest_api_resources(config)}
            yield from resources[api.resource]
        except Exception as error:
            raise _explained(api, error) from error


def _quiet_dlt() -> Any:
    """dlt's rest_api, which by itself would report home and print its own warnings."""
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


def _config(api: ApiSource, start: Position, session: Session) -> dict[str, Any]:
    client = {**reveal(api.client), "base_url": api.base_url, "session": session}
    _use_session(client, session)
    resources = [_resource(api, each, start, session) for each in reveal(api.resources)]
    config: dict[str, Any] = {"client": client, "resources": resources}
    if api.defaults:
        config["resource_defaults"] = copy.deepcopy(reveal(api.defaults))
    return config


def _resource(
    api: ApiSource, resource: dict[str, Any], start: Position, session: Session
) -> dict[str, Any]:
    resource = copy.deepcopy(resource)
    endpoint = resource.get("endpoint")
    if isinstance(endpoint, dict):
        _use_session(endpoint, session)
    if resource["name"] == api.resource and api.cursor is not None:
        resource["endpoint"]["incremental"] = {
            **resource["endpoint"]["incremental"],
            "initial_value": api.cursor.initial if start.cursor is None else start.cursor,
            # Nothing is left out by dlt: a record without a cursor goes to quarantine.
            "on_cursor_value_missing": "include",
        }
    return resource


def _use_session(settings: dict[str, Any], session: Session) -> None:
    """Have tokens fetched through our session too."""
    auth = settings.get("auth")
    if isinstance(auth, dict) and auth.get("type") == "oauth2_client_credentials":
        settings["auth"] = {**auth, "session": session}


def _explained(api: ApiSource, error: BaseException) -> ThermoclineError:
    """What happened, as an error of ours: dlt and requests wrap it several times."""
    from dlt.common.exceptions import DictValidationException
    from requests import HTTPError
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import RequestException, Timeout

    chain = list(_causes(error))
    for each in chain:
        match each:
            case ThermoclineError():
                return each
            case HTTPError():
                return _refused(api, each)
            case NoConnection() | Timeout():
                return Transient(f"{_of(api)} cannot be reached: {_said(each)}", "Run again.")
            case RequestException():
                return BadInput(f"{_of(api)} cannot be pulled: {_said(each)}", "Mend the source.")
            case DictValidationException():
                return ConfigError(
                    f"{one_line(api.resource)}: {_said(each)}",
                    "Mend the source; see dlt's rest_api for what it takes.",
                )
    return Permanent(
        f"{_of(api)} cannot be pulled: {type(chain[-1]).__name__}: {_said(chain[-1])}",
        "Check the resource's paginator, data_selector and incremental.",
    )


def _refused(api: ApiSource, error: Any) -> ThermoclineError:
    status = error.response.status_code
    said = f"{_of(api)} answered {status} {one_line(str(error.response.reason or ''))}".strip()
    if status == 429 or status >= 500:
        return Transient(f"{said}, again and again.", "Run again later.", status=status)
    if status in {401, 403}:
        return BadInput(f"{said}.", "Check the secret and the type under auth.", status=status)
    return BadInput(f"{said}.", "Check the path and the params of the endpoint.", status=status)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = inner.__cause__ or inner.__context__


def _of(api: ApiSource) -> str:
    return f"{one_line(api.resource)} at {parse_origin(api.base_url)}"


def _said(error: BaseException) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return redact(one_line(first))[:300]


def reach_of(settings: Settings) -> EgressPolicy:
    """What the project's settings allow a pull to reach."""
    return EgressPolicy.from_settings(settings.api.allow_private, settings.api.allow_networks)
