"""The SQL models on DuckDB, over a first load, against the same figures in plain Python."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal

import duckdb
import pyarrow as pa
import pytest

from thermocline.contract import load_contracts

STAMP = pa.timestamp("us", "UTC")
ITEMS = pa.list_(
    pa.struct(
        [
            ("product_id", pa.string()),
            ("quantity", pa.int32()),
            ("unit_price", pa.decimal128(10, 2)),
            ("discount", pa.decimal128(5, 2)),
        ]
    )
)
ADDRESS = pa.struct([(name, pa.string()) for name in ("street", "city", "state", "zip", "country")])
NESTED = {"items": ITEMS, "address": ADDRESS, "shipping_address": ADDRESS}
CENT = Decimal("0.01")


def arrow_type(name, type_):
    if name in NESTED:
        return NESTED[name]
    text = str(type_)
    if text.startswith("decimal"):
        precision, scale = text[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return {
        "string": pa.string(), "int": pa.int32(), "long": pa.int64(), "date": pa.date32(),
        "boolean": pa.bool_(), "timestamptz": STAMP,
    }[text]  # fmt: skip


def history(rows):
    """Versions with the time in which each was true, from profiles in any order."""
    versions = defaultdict(dict)
    for row in rows:
        versions[row["customer_id"]][row["updated_at"], row["source_lsn"]] = row
    for known in versions.values():
        ordered = [known[key] for key in sorted(known)]
        for row, after in zip(ordered, [*ordered[1:], None], strict=True):
            until = None if after is None else after["updated_at"]
            yield {
                **row,
                "_valid_from": row["updated_at"],
                "_valid_to": until,
                "_is_current": until is None,
            }


class Shop:
    """Tables in DuckDB: bronze as landed, silver and gold as the models make them."""

    def __init__(self, folder, landing, plain):
        self.folder, self.plain = folder, plain
        self.contracts = load_contracts(folder / "contracts")
        self.con = duckdb.connect()
        self.con.execute("set TimeZone = 'UTC'")
        for layer in ("bronze", "silver", "gold"):
            self.con.execute(f"create schema {layer}")
        for table, landed in landing.items():
            self.store(f"bronze.raw_{table}", landed.rows)
        self.store("silver.customers", history(self.rows("silver.customers")))
        self.store(
            "silver.products",
            plain.newest(self.rows("silver.products"), "product_id", "updated_at").values(),
        )
        orders = plain.newest(landing["orders"].rows, "order_id", "_lsn").values()
        self.store("silver.orders", [self.silver_order(row) for row in orders])
        self.store("silver.sessions", self.rows("silver.sessions"))

    def silver_order(self, row):
        """What models/silver/orders.py makes of a record; that one needs Spark to run."""
        address = row["shipping_address"]
        return {
            **row,
            **self.plain.amounts(row),
            "item_count": len(row["items"]),
            "shipping_city": address["city"],
            "shipping_state": address["state"],
            "shipping_country": address["country"],
            "source_lsn": row["_lsn"],
        }

    def store(self, table, rows):
        fields = [(c.name, arrow_type(c.name, c.type)) for c in self.contracts[table].columns]
        if table == "silver.customers":
            fields += [("_valid_from", STAMP), ("_valid_to", STAMP), ("_is_current", pa.bool_())]
        schema = pa.schema(fields)
        arrow = pa.Table.from_pylist(list(rows), schema)  # noqa: F841 (DuckDB finds it by name)
        self.con.execute(f"create table {table} as select * from arrow")

    def relation(self, table):
        layer, name = table.split(".")
        return self.con.sql((self.folder / "models" / layer / f"{name}.sql").read_text())

    def rows(self, table):
        relation = self.relation(table)
        return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


@pytest.fixture(scope="module")
def landing(generator, read, tmp_path_factory):
    """A smaller shop than the default: plain Python has to keep up."""
    folder = tmp_path_factory.mktemp("models")
    summary = generator.generate(folder, customers=300, products=120, orders=1500, events=6000)
    return {table: read(folder, table) for table in summary.tables}


@pytest.fixture(scope="module")
def shop(landing, plain):
    return Shop(plain.shop, landing, plain)


@pytest.fixture(scope="module")
def orders(landing, plain):
    rows = plain.newest(landing["orders"].rows, "order_id", "_lsn").values()
    return [{**row, **plain.amounts(row)} for row in rows]


@pytest.mark.parametrize(
    ("table", "extra"),
    [
        ("silver.customers", ["_op"]),
        ("silver.products", []),
        ("silver.sessions", []),
        ("gold.daily_revenue", []),
        ("gold.daily_metrics", []),
        ("gold.funnel_metrics", []),
        ("gold.user_features", ["gone"]),
    ],
)
def test_columns_and_types_are_the_contracts(shop, table, extra):
    relation = shop.relation(table)
    names = {"string": "VARCHAR", "long": "BIGINT", "int": "INTEGER",
             "timestamptz": "TIMESTAMP WITH TIME ZONE"}  # fmt: skip
    promised = [
        (column.name, names.get(str(column.type), str(column.type).upper()))
        for column in shop.contracts[table].columns
    ]
    given = list(zip(relation.columns, map(str, relation.types), strict=True))
    assert given[: len(promised)] == promised
    assert [name for name, _ in given[len(promised) :]] == extra


def test_daily_revenue(shop, orders):
    days = defaultdict(list)
    for order in orders:
        if order["order_status"] != "cancelled":
            days[order["order_date"].date()].append(order)
    expected = {}
    for day, kept in days.items():
        revenue = sum(order["net_amount"] for order in kept)
        expected[day] = {
            "day": day,
            "orders": len(kept),
            "customers": len({order["customer_id"] for order in kept}),
            "items": sum(len(order["items"]) for order in kept),
            "revenue": revenue,
            "average_order": (revenue / len(kept)).quantize(CENT, ROUND_HALF_UP),
        }
    found = {row["day"]: row for row in shop.rows("gold.daily_revenue")}
    assert len(found) == 91
    assert found == expected


def test_daily_metrics(shop, orders, landing):
    versions = defaultdict(list)
    for row in landing["customers"].rows:
        versions[row["customer_id"]].append((row["updated_at"], row["_lsn"], row["segment"]))
    category = {row["product_id"]: row["category"] for row in landing["products"].rows}
    value, count = defaultdict(Decimal), defaultdict(set)
    for order in orders:
        if order["order_status"] == "cancelled":
            continue
        day, number = order["order_date"].date(), order["order_id"]
        past = [v for v in versions[order["customer_id"]] if v[0] <= order["order_date"]]
        segment = max(past)[2] if past else "unknown"
        for key in ((day, "daily", "all", "all"), (day, "segment", "segment", segment)):
            value[key] += order["net_amount"]
            count[key].add(number)
        for item in order["items"]:
            key = (day, "category", "category", category[item["product_id"]])
            value[key] += item["quantity"] * item["unit_price"] * (1 - item["discount"])
            count[key].add(number)
    expected = {
        key: (value[key].quantize(CENT, ROUND_HALF_UP), len(numbers))
        for key, numbers in count.items()
    }
    found = {
        tuple(row.values())[:4]: tuple(row.values())[4:] for row in shop.rows("gold.daily_metrics")
    }
    assert found == expected
    assert {key[3] for key in found if key[1] == "segment"} == {
        "consumer", "small_business", "enterprise", "vip", "unknown",
    }  # fmt: skip


def plain_sessions(clicks):
    """Visits by walking through each user's clicks of each day."""
    users = defaultdict(list)
    for click in {click["event_id"]: click for click in clicks}.values():
        users[click["event_ts"].date(), click["user_id"]].append(click)
    for (day, user), own in users.items():
        own.sort(key=lambda click: (click["event_ts"], click["event_id"]))
        visit, number = [own[0]], 1
        for click in own[1:]:
            if click["event_ts"] - visit[-1]["event_ts"] > timedelta(minutes=30):
                yield f"{user}/{day}/{number}", visit
                visit, number = [], number + 1
            visit.append(click)
        yield f"{user}/{day}/{number}", visit


def test_sessions(shop, landing):
    expected = {
        name: (
            visit[0]["event_ts"],
            visit[-1]["event_ts"],
            len(visit),
            visit[0]["page"],
            visit[0]["device"],
            sum(click["event_type"] == "product_view" for click in visit),
            any(click["event_type"] == "purchase" for click in visit),
        )
        for name, visit in plain_sessions(landing["events"].rows)
    }
    found = {
        row["session_id"]: (
            row["started_at"], row["ended_at"], row["events"], row["entry_page"], row["device"],
            row["product_views"], row["purchased"],
        )
        for row in shop.rows("silver.sessions")
    }  # fmt: skip
    assert found == expected
    assert sum(row[2] for row in found.values()) == 6000


def test_funnel(shop, landing):
    stages = ("page_view", "product_view", "add_to_cart", "checkout", "purchase")
    reached = defaultdict(list)
    for name, visit in plain_sessions(landing["events"].rows):
        furthest = max(stages.index(click["event_type"]) for click in visit)
        reached[name.split("/")[1], visit[0]["device"]].append(furthest)
    expected = {
        key: (
            *(sum(stage >= wanted for stage in furthest) for wanted in range(5)),
            (Decimal(furthest.count(4)) / len(furthest)).quantize(Decimal("0.0001"), ROUND_HALF_UP),
        )
        for key, furthest in reached.items()
    }
    found = {
        (str(row["day"]), row["device"]): tuple(row.values())[2:]
        for row in shop.rows("gold.funnel_metrics")
    }
    assert found == expected


def test_user_features(shop, orders, landing):
    visits = defaultdict(list)
    for name, visit in plain_sessions(landing["events"].rows):
        visits[name.split("/")[0]].append(visit)
    own = defaultdict(list)
    for order in orders:
        own[order["customer_id"]].append(order)
    found = {row["customer_id"]: row for row in shop.rows("gold.user_features")}
    assert len(found) == 300
    for customer, row in found.items():
        kept = [order for order in own[customer] if order["order_status"] != "cancelled"]
        dates = sorted(order["order_date"] for order in kept)
        spent = sum((order["net_amount"] for order in kept), Decimal("0.00"))
        assert row["orders"] == len(kept)
        assert row["cancelled_orders"] == len(own[customer]) - len(kept)
        assert row["lifetime_value"] == spent
        assert row["first_order_at"] == (dates[0] if dates else None)
        assert row["last_order_at"] == (dates[-1] if dates else None)
        days = (dates[-1].date() - dates[0].date()).days if dates else None
        assert row["active_days"] == days
        average = (spent / len(kept)).quantize(CENT, ROUND_HALF_UP) if kept else None
        assert row["average_order"] == average
        assert row["sessions"] == len(visits[customer])
        assert row["gone"] is False


def test_a_customer_who_left_is_gone(shop):
    shop.con.execute("begin")
    shop.con.execute(
        "update silver.customers set _is_current = false where customer_id = 'CUST-00000003'"
    )
    gone = [row["customer_id"] for row in shop.rows("gold.user_features") if row["gone"]]
    shop.con.execute("rollback")
    assert gone == ["CUST-00000003"]


def test_profiles_are_normalised(shop, landing):
    raw = {row["_lsn"]: row for row in landing["customers"].rows}
    rows = shop.rows("silver.customers")
    assert any(raw[row["source_lsn"]]["email"] != row["email"] for row in rows)
    for row in rows:
        sent = raw[row["source_lsn"]]
        assert row["email"] == sent["email"].strip().lower()
        assert row["phone"] == "".join(letter for letter in sent["phone"] if letter.isdigit())
        assert row["city"] == sent["address"]["city"]
        assert row["full_name"] == f"{sent['first_name']} {sent['last_name']}"


def test_the_first_load_holds_the_contracts_own_rules(shop):
    """Every SQL rule, as written, on the tables the models make."""
    for table in ("gold.daily_revenue", "gold.daily_metrics", "gold.funnel_metrics"):
        shop.con.execute(f"create table {table} as {shop.relation(table).sql_query()}")
    features = shop.relation("gold.user_features").sql_query()
    shop.con.execute(f"create table gold.user_features as {features}")
    held = 0
    for table, contract in shop.contracts.items():
        for rule in contract.rules:
            if rule.kind == "sql" and rule.bounds == (("mustBe", 0),):
                query = rule.argument("query").replace("{object}", table)
                assert shop.con.execute(query).fetchone() == (0,), f"{table}: {rule.title}"
                held += 1
    assert held == 14
