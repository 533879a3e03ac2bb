"""What the files and the environment give, checked value by value, weakest layer first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from thermocline.config.address import names_a_secret, split_uri
from thermocline.config.known import BY_KEY, ENVIRONMENT_PREFIX, SETTINGS, Setting
from thermocline.config.values import Secret
from thermocline.errors import ConfigError

PROJECT_FILE = "thermocline.toml"
SECRETS_FILE = "secrets.toml"


def layers(
    project: Path, profile: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, Any]]:
    """(origin, dotted key, value) of all that is set, weakest layer first."""
    shared = _read(project / PROJECT_FILE)
    private = _read(project / SECRETS_FILE) if (project / SECRETS_FILE).is_file() else {}
    overlays = {
        PROJECT_FILE: _profiles(shared, PROJECT_FILE),
        SECRETS_FILE: _profiles(private, SECRETS_FILE),
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
        for key, value in _given(tree, file):
            yield origin, key, value
        # Profiles that are not in force are read as well: a typo should not wait for its day.
        for name, overlay in overlays[file].items():
            for key, value in _given(overlay, file, f"profile.{name}."):
                if name == profile:
                    yield f"profile {name}" if file == PROJECT_FILE else origin, key, value
    for key, value in _from_environment(environ):
        yield "environment", key, value


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        # The parser's message holds a position and at most one character, never a value.
        raise ConfigError(
            f"{path.name} is not valid TOML: {error}", f"Mend {path}.", file=str(path)
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name} is not UTF-8 text.", f"Mend {path}.") from None
    except OSError as error:
        raise ConfigError(
            f"{path.name} cannot be read: {error.strerror}.", f"Check the rights of {path}."
        ) from None


def _profiles(tree: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    profiles = tree.pop("profile", {})
    if not isinstance(profiles, dict) or not all(isinstance(v, dict) for v in profiles.values()):
        raise ConfigError(
            f"{file}: `profile` must hold sections.", "Write [profile.NAME.lake] and so on."
        )
    return profiles


def _given(tree: dict[str, Any], file: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a parsed file, each checked; `prefix` only serves the messages."""
    stack = [(key, value) for key, value in reversed(tree.items())]
    while stack:
        key, value = stack.pop()
        if key in BY_KEY:
            yield key, _accept(BY_KEY[key], value, file, prefix)
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


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    variables = {setting.variable: setting for setting in SETTINGS}
    for name in sorted(environ):
        if not is_setting(name):
            continue
        if name not in variables:
            _refuse_unknown(name, f"Environment variable {name}", list(variables))
        setting = variables[name]
        yield setting.key, _accept(setting, _from_text(setting, environ[name], name), name)


def is_setting(variable: str) -> bool:
    """Whether an environment variable sets one of the settings.

    Names without "__" after the prefix steer something else, THERMOCLINE_PROFILE for one.
    """
    return variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable


def _from_text(setting: Setting, text: str, variable: str) -> Any:
    """An environment variable's text as the value a TOML file would hold."""
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


_WANTED = {
    str: "text",
    Secret: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
    dict: "a table of texts",
}


def _accept(setting: Setting, value: Any, source: str, prefix: str = "") -> Any:
    """The value in its own type, or a ConfigError that does not repeat the value."""
    where = f"{source}: `{prefix}{setting.key}`"
    if setting.kind is Secret and source == PROJECT_FILE:
        _refuse_secret(where, setting.variable)
    if setting.kind is float and type(value) is int:
        value = float(value)  # 1 is a number too
    wanted = {Secret: str, tuple: list}.get(setting.kind, setting.kind)
    wrong = not isinstance(value, wanted) or (isinstance(value, bool) and setting.kind is not bool)
    if setting.kind is tuple and not wrong:
        wrong = not all(isinstance(item, str) for item in value)
    if setting.kind is dict and not wrong:
        value = _plain_table(value, where)
    if wrong:
        raise ConfigError(
            f"{where} must be {_WANTED[setting.kind]}, not {type(value).__name__}.",
            f"Mend it in {source}.",
            key=setting.key,
        )
    problem = setting.check(value) if setting.check else None
    if problem:
        raise ConfigError(f"{where} {problem}.", f"Mend it in {source}.", key=setting.key)
    if setting.key == "lake.catalog.uri" and source == PROJECT_FILE and split_uri(value)[2]:
        _refuse_secret(f"{where} holds a password, which", "THERMOCLINE_LAKE__CATALOG__PASSWORD")
    if setting.kind is Secret:
        return Secret(value)
    return tuple(value) if setting.kind is tuple else value


def _plain_table(table: dict[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    """A table of texts; unquoted dotted names (spark.ui.enabled = false) mean what they say."""
    flat: dict[str, str] = {}
    for name, value in table.items():
        full = prefix + name
        if isinstance(value, dict):
            flat |= _plain_table(value, where, f"{full}.")
        elif names_a_secret(full):
            raise ConfigError(
                f"{where} entry {full!r} names a secret, and free entries are shown.",
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
