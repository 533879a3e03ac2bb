"""Secrets: where they may come from, and that they show themselves nowhere."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import pytest

from thermocline.config import SETTINGS, Secret, load_settings
from thermocline.errors import ConfigError

CANARY = "c4nary-s3cret"
SECRET_KEYS = [setting.key for setting in SETTINGS if setting.kind is Secret]


def write(folder: Path, toml: str = "", secrets: str | None = None) -> Path:
    (folder / "thermocline.toml").write_text(toml)
    if secrets is not None:
        (folder / "secrets.toml").write_text(secrets)
        (folder / "secrets.toml").chmod(0o600)
    return folder


def test_a_secret_gives_itself_only_by_reveal() -> None:
    secret = Secret(CANARY)
    assert secret.reveal() == CANARY
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>5}", f"{secret!r}", f"{[secret]}"]
    assert shown == ["***", "***", "***", "  ***", "***", "[***]"]
    assert json.dumps(secret, default=str) == '"***"'
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(secret)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)
    assert copy.deepcopy(secret) == secret == Secret(CANARY) != Secret("other")


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_secret_in_the_shared_file_is_refused(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    for prefix in ("", "profile.team."):
        with pytest.raises(ConfigError) as caught:
            load_settings(write(tmp_path, f'[{prefix}{section}]\n{name} = "{CANARY}"'), None, {})
        assert f"thermocline.toml: `{prefix}{key}` must not be written here" in caught.value.cause
        assert "THERMOCLINE_" in caught.value.next_step
        assert "secrets.toml" in caught.value.next_step
        assert CANARY not in str(caught.value.as_dict())


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_secret_comes_from_the_environment_or_the_secrets_file(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    variable = "THERMOCLINE_" + key.upper().replace(".", "__")
    from_environment = load_settings(write(tmp_path), None, {variable: CANARY})
    assert from_environment.value(key).reveal() == CANARY
    assert from_environment.origins[key] == "environment"
    from_file = load_settings(write(tmp_path, "", f'[{section}]\n{name} = "{CANARY}"'), None, {})
    assert from_file.value(key).reveal() == CANARY
    assert from_file.origins[key] == "secrets file"
    for settings in (from_environment, from_file):
        assert settings.secrets() == (Secret(CANARY),)
        assert CANARY not in repr(settings)
        assert CANARY not in str(dataclasses.asdict(settings.s3))


def test_a_secret_of_the_wrong_type_is_not_repeated(tmp_path: Path) -> None:
    folder = write(tmp_path, "", "[lake.catalog]\ntoken = 734159265")
    with pytest.raises(ConfigError) as caught:
        load_settings(folder, None, {})
    assert caught.value.cause == "secrets.toml: `lake.catalog.token` must be text, not int."


def test_a_password_inside_an_address_is_taken_out(tmp_path: Path) -> None:
    folder = write(tmp_path, '[lake.catalog]\ntype = "postgres"')
    uri = "postgres://ann%40x:p%40ss%2Fw@db:5433/lake?sslmode=require"
    settings = load_settings(folder, None, {"THERMOCLINE_LAKE__CATALOG__URI": uri})
    assert settings.catalog.uri == "postgresql://ann%40x@db:5433/lake?sslmode=require"
    assert settings.catalog.user == "ann@x"
    assert settings.catalog.password == Secret("p@ss/w")
    assert settings.origins["lake.catalog.password"] == "environment"


def test_user_and_password_settings_win_over_the_address(tmp_path: Path) -> None:
    folder = write(tmp_path, '[lake.catalog]\ntype = "postgres"\nuri = "postgresql://ann@db/lake"')
    environ = {
        "THERMOCLINE_LAKE__CATALOG__USER": "bob",
        "THERMOCLINE_LAKE__CATALOG__PASSWORD": CANARY,
    }
    catalog = load_settings(folder, None, environ).catalog
    assert (catalog.uri, catalog.user) == ("postgresql://bob@db/lake", "bob")
    assert catalog.password == Secret(CANARY)


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://ann:{CANARY}@db/lake",
        f"postgresql://ann:[{CANARY}@db/lake",
        f"postgresql://ann:x/{CANARY}@db/lake",
        f"postgresql://ann:x#{CANARY}@db/lake",
        f"postgresql://db/lake?password={CANARY}",
    ],
)
def test_an_address_with_a_password_is_refused_in_the_shared_file(tmp_path: Path, uri: str) -> None:
    folder = write(tmp_path, f'[lake.catalog]\ntype = "postgres"\nuri = "{uri}"')
    with pytest.raises(ConfigError) as caught:
        load_settings(folder, None, {})
    assert "lake.catalog.uri" in caught.value.cause
    assert CANARY not in str(caught.value.as_dict())


@pytest.mark.parametrize("text", [f"postgresql://a:[{CANARY}@db/l", f"postgresql://a:{CANARY}/@d"])
def test_an_address_that_cannot_be_split_goes_no_further(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, '[lake.catalog]\ntype = "postgres"')
    with pytest.raises(ConfigError) as caught:
        load_settings(folder, None, {"THERMOCLINE_LAKE__CATALOG__URI": text})
    assert CANARY not in str(caught.value.as_dict())


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("lake.catalog.properties", "s3.secret-access-key"),
        ("lake.catalog.properties", "header.Authorization"),
        ("engine.spark.conf", "spark.hadoop.fs.s3a.secret.key"),
        ("engine.spark.conf", "spark.ssl.keyPassword"),
    ],
)
def test_a_secret_among_free_properties_is_refused(tmp_path: Path, section: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, f'[{section}]\n"{name}" = "{CANARY}"'), None, {})
    assert name in caught.value.cause
    assert CANARY not in str(caught.value.as_dict())


def test_a_secrets_file_that_all_can_read_is_warned_of(tmp_path: Path) -> None:
    folder = write(tmp_path, "", f'[lake.s3]\nsecret_key = "{CANARY}"')
    assert load_settings(folder, None, {}).warnings == ()
    (folder / "secrets.toml").chmod(0o644)
    (warning,) = load_settings(folder, None, {}).warnings
    assert warning == (
        f"secrets.toml can be read by everybody; run `chmod 600 {folder / 'secrets.toml'}`."
    )
