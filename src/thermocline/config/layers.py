"""Read settings from files and the environment, weakest layer first, and validate each value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from thermocline.config.definitions import BY_KEY, ENVIRONMENT_PREFIX, SETTINGS, Setting
from thermocline.config.lake_addresses import is_secret_name, split_uri
from thermocline.config.settings import Secret
from thermocline.errors import ConfigError

PROJECT_FILE = "thermocline.toml"
SECRETS_FILE = "secrets.toml"


def read_layers(
    project: Path, profile: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, Any]]:
    """Yield (origin, dotted key, value) for everything that is set, weakest layer first."""
    shared = _read_toml(project / PROJECT_FILE)
    private = _read_toml(project / SECRETS_FILE) if (project / SECRETS_FILE).is_file() else {}
    overlays = {
        PROJECT_FILE: _pop_profiles(shared, PROJECT_FILE),
        SECRETS_FILE: _pop_profiles(private, SECRETS_FILE),
    }
    known = sorted({name for overlay in overlays.values() for name in overlay})
    if profile is not None and profile not in known:
        listed = ", ".join(known) if known else "none"
        raise ConfigError(
            f"{PROJECT_FILE} has no profile {profile!r} (it has: {listed}).",
            f"Write a [profile.{profile}] section, or leave the profile out.",
            profile=profile,
            profiles=known,
        )
    for tree, file, origin in (
        (shared, PROJECT_FILE, PROJECT_FILE),
        (private, SECRETS_FILE, "secrets file"),
    ):
        for key, value in _read_settings(tree, file):
            yield origin, key, value
        # Inactive profiles are validated as well, so that a typo is found at once.
        for name, overlay in overlays[file].items():
            for key, value in _read_settings(overlay, file, f"profile.{name}."):
                if name == profile:
                    yield f"profile {name}" if file == PROJECT_FILE else origin, key, value
    for key, value in _read_environment(environ):
        yield "environment", key, value


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        # The parser's message holds a position and at most one character, never a value.
        raise ConfigError(
            f"{path.name} is not valid TOML: {error}", f"Fix {path}.", file=str(path)
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name} is not UTF-8 text.", f"Save {path} as UTF-8.") from None
    except OSError as error:
        raise ConfigError(
            f"{path.name} cannot be read: {error.strerror}.", f"Check the permissions of {path}."
        ) from None


def _pop_profiles(tree: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    profiles = tree.pop("profile", {})
    if not isinstance(profiles, dict) or not all(isinstance(v, dict) for v in profiles.values()):
        raise ConfigError(
            f"{file}: `profile` must hold sections.", "Write [profile.NAME.lake] and so on."
        )
    return profiles


def _read_settings(tree: dict[str, Any], file: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the validated settings of a parsed file; `prefix` only serves the messages."""
    stack = [(key, value) for key, value in reversed(tree.items())]
    while stack:
        key, value = stack.pop()
        if key in BY_KEY:
            yield key, _validate(BY_KEY[key], value, file, prefix)
        elif any(known.startswith(f"{key}.") for known in BY_KEY):
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{file}: `{prefix}{key}` must be a section, not {type(value).__name__}.",
                    f"Write it as [{prefix}{key}] in {file}.",
                    key=key,
                )
            stack += [(f"{key}.{name}", inner) for name, inner in reversed(value.items())]
        else:
            _refuse_unknown(key, f"{file}: `{prefix}{key}`", _known_names(), prefix)


def _known_names() -> list[str]:
    sections = {key.rpartition(".")[0] for key in BY_KEY} | {"lake", "engine", "ingest"}
    return [*BY_KEY, *sorted(sections)]


def _refuse_unknown(key: str, what: str, known: list[str], prefix: str = "") -> NoReturn:
    import difflib

    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean `{prefix}{close[0]}`?" if close else "."
    raise ConfigError(
        f"{what} is not a setting{hint}", "`thermo config` lists every setting.", key=key
    )


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    variables = {setting.variable: setting for setting in SETTINGS}
    for name in sorted(environ):
        if not is_setting(name):
            continue
        if name not in variables:
            _refuse_unknown(name, f"Environment variable {name}", list(variables))
        setting = variables[name]
        yield setting.key, _validate(setting, _parse_text(setting, environ[name], name), name)


def is_setting(variable: str) -> bool:
    """Return whether an environment variable is a setting.

    Names without "__" after the prefix have another purpose, such as THERMOCLINE_PROFILE.
    """
    return variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable


def _parse_text(setting: Setting, text: str, variable: str) -> Any:
    """Convert the text of an environment variable to the value that a TOML file would hold."""
    if setting.kind is bool and text.lower() in {"true", "1", "yes", "on"}:
        return True
    if setting.kind is bool and text.lower() in {"false", "0", "no", "off"}:
        return False
    if setting.kind is int and text.strip().removeprefix("-").isdecimal():
        return int(text)
    if setting.kind is float:
        with contextlib.suppress(ValueError):
            return float(text)
    if setting.kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if setting.kind is dict:
        import json

        try:
            return json.loads(text)
        except ValueError:
            raise ConfigError(
                f"{variable} must be a JSON object.", 'Write it as {"name": "value"}.'
            ) from None
    return text


_TYPE_NAMES = {
    str: "text",
    Secret: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of strings",
    dict: "a table of strings",
}


def _validate(setting: Setting, value: Any, source: str, prefix: str = "") -> Any:
    """Return the value in its own type. Raises ConfigError, which never repeats the value."""
    where = f"{source}: `{prefix}{setting.key}`"
    if setting.kind is Secret and source == PROJECT_FILE:
        _refuse_secret(where, setting.variable)
    if setting.kind is float and type(value) is int:
        value = float(value)  # a whole number is a valid number
    expected = {Secret: str, tuple: list}.get(setting.kind, setting.kind)
    wrong = not isinstance(value, expected) or (
        isinstance(value, bool) and setting.kind is not bool
    )
    if setting.kind is tuple and not wrong:
        wrong = not all(isinstance(item, str) for item in value)
    if setting.kind is dict and not wrong:
        value = _flatten_table(value, where)
    if wrong:
        raise ConfigError(
            f"{where} must be {_TYPE_NAMES[setting.kind]}, not {type(value).__name__}.",
            f"Fix it in {source}.",
            key=setting.key,
        )
    problem = setting.check(value) if setting.check else None
    if problem:
        raise ConfigError(f"{where} {problem}.", f"Fix it in {source}.", key=setting.key)
    if setting.key == "lake.catalog.uri" and source == PROJECT_FILE and split_uri(value)[2]:
        _refuse_secret(f"{where} holds a password, which", "THERMOCLINE_LAKE__CATALOG__PASSWORD")
    if setting.kind is Secret:
        return Secret(value)
    return tuple(value) if setting.kind is tuple else value


def _flatten_table(table: dict[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    """Return a flat table of texts; unquoted dotted names (spark.ui.enabled = false) are joined."""
    flat: dict[str, str] = {}
    for name, value in table.items():
        full = prefix + name
        if isinstance(value, dict):
            flat |= _flatten_table(value, where, f"{full}.")
        elif is_secret_name(full):
            raise ConfigError(
                f"{where} entry {full!r} names a secret, but entries of this table are displayed.",
                "Use lake.catalog.password, token or credential, or the keys of lake.s3.",
            )
        elif isinstance(value, bool):
            flat[full] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            flat[full] = str(value)
        else:
            raise ConfigError(
                f"{where} entry {full!r} must be text, not {type(value).__name__}.",
                "Put the value in quotes.",
            )
    return flat


def _refuse_secret(where: str, variable: str) -> NoReturn:
    raise ConfigError(
        f"{where} must not be written here: the file is shared.",
        f"Put it in the environment variable {variable} or in {SECRETS_FILE}, which git ignores.",
    )
