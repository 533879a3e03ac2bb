"""Settings: which layer wins, what is refused, and how each refusal reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from thermocline.config import Settings, find_project, load_settings
from thermocline.errors import ConfigError

Write = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path) -> Write:
    def write(toml: str = "", secrets: str | None = None) -> Path:
        (tmp_path / "thermocline.toml").write_text(toml, encoding="utf-8")
        if secrets is not None:
            (tmp_path / "secrets.toml").write_text(secrets, encoding="utf-8")
            (tmp_path / "secrets.toml").chmod(0o600)
        return tmp_path

    return write


def read(project: Path, profile: str | None = None, **environ: str) -> Settings:
    return load_settings(project, profile, environ)


def refusal(project: Path, profile: str | None = None, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(project, profile, environ)
    assert caught.value.next_step, "a refusal says what to do"
    assert "\n" not in caught.value.cause
    return caught.value


def test_an_empty_file_means_the_embedded_lake(project: Write) -> None:
    folder = project()
    settings = read(folder)
    assert settings.warehouse == str(folder / "lake")
    assert settings.catalog.type == "sqlite"
    assert settings.catalog.uri == str(folder / "lake" / "catalog.db")
    assert settings.spark.master == "local[*]"
    assert set(settings.origins.values()) == {"default"}


def test_each_layer_wins_over_the_one_below_it(project: Write) -> None:
    folder = project(
        '[lake]\nname = "file"\n[engine.spark]\nmaster = "local[1]"\nmemory = "1g"\n'
        '[profile.team.engine.spark]\nmaster = "spark://a:7077"\nmemory = "3g"\n',
        secrets='[engine.spark]\nmemory = "4g"\n',
    )
    settings = read(folder, "team", THERMOCLINE_ENGINE__SPARK__SHUFFLE_PARTITIONS="64")
    assert (settings.name, settings.spark.master) == ("file", "spark://a:7077")
    assert (settings.spark.memory, settings.spark.shuffle_partitions) == ("4g", 64)
    assert settings.origins["lake.name"] == "thermocline.toml"
    assert settings.origins["engine.spark.master"] == "profile team"
    assert settings.origins["engine.spark.memory"] == "secrets file"
    assert settings.origins["engine.spark.shuffle_partitions"] == "environment"
    assert settings.origins["engine.duckdb.threads"] == "default"
    assert read(folder).spark.master == "local[1]"


def test_the_profile_comes_from_the_argument_or_the_environment(project: Write) -> None:
    folder = project('[profile.a.lake]\nname = "A"\n[profile.b.lake]\nname = "B"\n')
    assert read(folder, THERMOCLINE_PROFILE="a").name == "A"
    assert read(folder, "b", THERMOCLINE_PROFILE="a").name == "B"
    assert read(folder, THERMOCLINE_PROFILE="").name == "lake"


def test_an_unknown_profile_names_those_there_are(project: Write) -> None:
    error = refusal(project('[profile.team.lake]\nname = "x"\n'), "prod")
    assert error.cause == "thermocline.toml has no profile 'prod' (it has: team)."


def test_falsy_values_are_values(project: Write) -> None:
    folder = project(
        '[lake.s3]\npath_style = true\nregion = "eu"\n[engine.spark]\npackages = ["a:b:1"]\n'
        '[profile.p.lake.s3]\npath_style = false\nregion = ""\n[profile.p.engine.spark]\n'
        "packages = []\n"
    )
    settings = read(folder, "p")
    assert settings.s3.path_style is False
    assert settings.s3.region == ""
    assert settings.spark.packages == ()
    assert read(folder, THERMOCLINE_LAKE__S3__PATH_STYLE="0").s3.path_style is False
    assert read(folder, THERMOCLINE_LAKE__S3__REGION="").s3.region == ""


def test_tables_are_merged_entry_by_entry(project: Write) -> None:
    folder = project(
        '[engine.spark.conf]\nspark.ui.enabled = false\n"spark.a" = "1"\n'
        '[profile.p.engine.spark.conf]\n"spark.a" = "2"\n'
    )
    settings = read(folder, "p", THERMOCLINE_ENGINE__SPARK__CONF='{"spark.b": 3}')
    assert dict(settings.spark.conf) == {
        "spark.ui.enabled": "false",
        "spark.a": "2",
        "spark.b": "3",
    }
    assert settings.origins["engine.spark.conf.spark.ui.enabled"] == "thermocline.toml"
    assert settings.origins["engine.spark.conf.spark.a"] == "profile p"
    assert settings.origins["engine.spark.conf.spark.b"] == "environment"


@pytest.mark.parametrize(
    ("toml", "cause"),
    [
        (
            "[lake.catalog]\ntyp = 'rest'",
            "thermocline.toml: `lake.catalog.typ` is not a setting; "
            "did you mean `lake.catalog.type`?",
        ),
        (
            "[lak]\nname = 'x'",
            "thermocline.toml: `lak` is not a setting; did you mean `lake`?",
        ),
        (
            "[profile.t.engine.spark]\nmemry = '1g'",
            "thermocline.toml: `profile.t.engine.spark.memry` is not a setting; "
            "did you mean `profile.t.engine.spark.memory`?",
        ),
        ("[zebra]\nstripes = 4", "thermocline.toml: `zebra` is not a setting."),
        ("lake = 4", "thermocline.toml: `lake` must be a section, not int."),
        (
            "[engine.spark]\nshuffle_partitions = '8'",
            "thermocline.toml: `engine.spark.shuffle_partitions` must be a whole number, not str.",
        ),
        (
            "[engine.spark]\nshuffle_partitions = true",
            "thermocline.toml: `engine.spark.shuffle_partitions` must be a whole number, not bool.",
        ),
        (
            "[engine.spark]\nshuffle_partitions = 0",
            "thermocline.toml: `engine.spark.shuffle_partitions` must be at least 1.",
        ),
        (
            "[lake.s3]\npath_style = 1",
            "thermocline.toml: `lake.s3.path_style` must be true or false, not int.",
        ),
        (
            "[engine.spark]\npackages = [1]",
            "thermocline.toml: `engine.spark.packages` must be a list of strings, not list.",
        ),
        (
            "[lake.catalog]\ntype = 'hive'",
            "thermocline.toml: `lake.catalog.type` must be sqlite, postgres or rest.",
        ),
        (
            "[engine.spark]\nmemory = 'lots'",
            'thermocline.toml: `engine.spark.memory` must be a size such as "2g" or "512m".',
        ),
        (
            "[engine.duckdb]\nmemory_limit = '12'",
            'thermocline.toml: `engine.duckdb.memory_limit` must be a size such as "1GB" '
            'or "512MiB".',
        ),
        (
            "[lake]\nwarehouse = 'gs://bucket'",
            "`lake.warehouse` begins with gs://, which is not supported.",
        ),
        (
            "[lake.catalog]\ntype = 'rest'",
            "`lake.catalog.uri` of a rest catalog is missing.",
        ),
        (
            "[lake.catalog]\ntype = 'postgres'\nuri = 'mysql://h/d'",
            "`lake.catalog.uri` of a postgres catalog must begin with postgresql://.",
        ),
        (
            "[lake.catalog]\nuri = 'postgresql://h/d'",
            "`lake.catalog.uri` of a sqlite catalog must be a file.",
        ),
        ("profile = 3", "thermocline.toml: `profile` must hold sections."),
    ],
)
def test_what_cannot_be_used_is_refused_by_file_and_key(
    project: Write, toml: str, cause: str
) -> None:
    assert refusal(project(toml)).cause == cause


def test_broken_toml_names_file_and_line(project: Write) -> None:
    cause = refusal(project("[lake]\nname = \n")).cause
    assert cause.startswith("thermocline.toml is not valid TOML: ")
    assert "line 2" in cause


def test_a_misspelt_variable_is_refused(project: Write) -> None:
    error = refusal(project(), THERMOCLINE_LAKE__CATALOG__URL="x")
    assert error.cause == (
        "Environment variable THERMOCLINE_LAKE__CATALOG__URL is not a setting; "
        "did you mean `THERMOCLINE_LAKE__CATALOG__URI`?"
    )
    assert read(project(), THERMOCLINE_CRASH_AT="x").name == "lake"


@pytest.mark.parametrize("text", ["", "two", "1.5"])
def test_a_variable_of_the_wrong_type_is_refused(project: Write, text: str) -> None:
    error = refusal(project(), THERMOCLINE_ENGINE__DUCKDB__THREADS=text)
    assert error.cause == (
        "THERMOCLINE_ENGINE__DUCKDB__THREADS: `engine.duckdb.threads` "
        "must be a whole number, not str."
    )


@pytest.mark.parametrize(
    ("given", "absolute"),
    [
        ("data/lake", "{project}/data/lake"),
        ("../lake", "{parent}/lake"),
        ("/srv/lake/", "/srv/lake"),
        ("file:///srv/lake", "/srv/lake"),
        ("s3a://bucket/prefix/", "s3://bucket/prefix"),
    ],
)
def test_the_warehouse_becomes_absolute(project: Write, given: str, absolute: str) -> None:
    folder = project(f'[lake]\nwarehouse = "{given}"')
    assert read(folder).warehouse == absolute.format(project=folder, parent=folder.parent)


def test_a_sqlite_file_is_relative_to_the_project(project: Write) -> None:
    folder = project('[lake]\nwarehouse = "s3://b/p"\n[lake.catalog]\nuri = "state/c.db"')
    assert read(folder).catalog.uri == str(folder / "state" / "c.db")
    assert read(project('[lake]\nwarehouse = "s3://b"')).catalog.uri == str(folder / "catalog.db")


def test_a_project_is_found_from_inside(project: Write) -> None:
    folder = project()
    inside = folder / "models" / "silver"
    inside.mkdir(parents=True)
    assert find_project(inside) == folder


def test_a_missing_project_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No thermocline\.toml in") as caught:
        find_project(tmp_path)
    assert "thermo init" in caught.value.next_step
    assert "thermo init" in refusal(tmp_path).next_step
