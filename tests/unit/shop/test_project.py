"""The example as a project: its contracts, models, sources and settings fit each other."""

from __future__ import annotations

import pytest

from thermocline.config import load_settings
from thermocline.contract import load_contracts
from thermocline.contract.definition import Contract, DriftMode
from thermocline.ingest.source import load_sources
from thermocline.transform.models import Model, load_models
from thermocline.transform.target_parts import find_incremental_blocker

SECRETS = {
    "THERMOCLINE_LAKE__CATALOG__PASSWORD": "canary-1",
    "THERMOCLINE_LAKE__S3__ACCESS_KEY": "canary-2",
    "THERMOCLINE_LAKE__S3__SECRET_KEY": "canary-3",
}


@pytest.fixture(scope="module")
def contracts(plain) -> dict[str, Contract]:
    return load_contracts(plain.shop / "contracts")


@pytest.fixture(scope="module")
def models(plain, contracts) -> dict[str, Model]:
    return load_models(plain.shop / "models", contracts)


def test_tables_and_how_they_are_written(contracts):
    assert {name: contract.write.value for name, contract in contracts.items()} == {
        "bronze.raw_customers": "append",
        "bronze.raw_events": "append",
        "bronze.raw_orders": "append",
        "bronze.raw_products": "append",
        "gold.daily_metrics": "partitions",
        "gold.daily_revenue": "partitions",
        "gold.funnel_metrics": "partitions",
        "gold.user_features": "merge",
        "silver.customers": "scd2",
        "silver.orders": "merge",
        "silver.products": "merge",
        "silver.sessions": "partitions",
    }


def test_the_contracts_show_what_contracts_can_do(contracts):
    kinds = {rule.kind for contract in contracts.values() for rule in contract.rules}
    assert kinds == {
        "accepted", "duplicates", "pattern", "range", "reference", "row_count", "sql",
    }  # fmt: skip
    bronze = [c.drift for c in contracts.values() if c.layer == "bronze"]
    assert set(bronze) == set(DriftMode)
    assert all(contract.description for contract in contracts.values())


def test_personal_data_is_classified(contracts):
    direct = {"email", "first_name", "last_name", "full_name", "phone", "street", "address",
              "customer_email", "shipping_address"}  # fmt: skip
    for contract in contracts.values():
        for column in contract.columns:
            if column.name in direct:
                assert column.classification == "pii.direct", f"{contract.table}.{column.name}"
            if column.name in {"customer_id", "user_id"}:
                assert column.classification == "pii.indirect", f"{contract.table}.{column.name}"


def test_every_source_feeds_a_bronze_table(plain, contracts):
    sources = load_sources(plain.shop / "sources")
    fed = sorted(source.target for source in sources.values())
    assert fed == sorted(name for name in contracts if name.startswith("bronze."))


def test_every_table_above_bronze_has_a_model(contracts, models):
    assert set(models) == {name for name in contracts if not name.startswith("bronze.")}


def test_every_model_can_be_computed_from_what_changed(models):
    reasons = {
        name: find_incremental_blocker(model) for name, model in models.items() if model.is_sql
    }
    assert reasons == dict.fromkeys(reasons)
    assert len(reasons) > 6


def test_settings_of_both_profiles(plain):
    here = load_settings(plain.shop, environ={})
    assert (here.name, here.catalog.type) == ("shop", "sqlite")
    assert here.warehouse == str(plain.shop / "lake")
    team = load_settings(plain.shop, "team", SECRETS)
    assert (team.catalog.type, team.warehouse) == ("postgres", "s3://shop-lake/warehouse")
    assert team.catalog.password is not None
    assert team.catalog.password.reveal() == "canary-1"
    assert "canary" not in repr(team)


def test_secrets_are_not_in_the_project(plain):
    ignored = (plain.shop / ".gitignore").read_text().split()
    assert {"/lake/", "/landing/", "secrets.toml"} <= set(ignored)
    text = (plain.shop / "thermocline.toml").read_text()
    assert "password =" not in text
    assert "secret_key =" not in text
