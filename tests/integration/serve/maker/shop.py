"""Questions by chance over the shop's tables: what is asked of facts, played by their columns.

A question is made as one about `silver.facts`, with `f.k`, `f.amount` and so on; then each of these
roles is given to something that one of the shop's tables has. Joins are the shop's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.integration.serve.maker.queries import Maker
from tests.integration.serve.maker.values import FACTS

Roles = Mapping[str, tuple[str, ...]]
"""What may play a role of facts; `{}` stands for the table's alias and a point."""


@dataclass(frozen=True)
class Beside:
    """A table that another one is joined with, by one of its columns."""

    table: str
    key: str
    label: str
    weight: str
    time: tuple[str, str] | None = None


@dataclass(frozen=True)
class Subject:
    """A table of the shop that questions are about."""

    table: str
    time: tuple[str, str] | None
    roles: Roles
    beside: tuple[tuple[str, Beside], ...]
    """What each is found by, in this table's words."""


CUSTOMERS = Beside("silver.customers", "customer_id", "city", "source_lsn")
FEATURES = Beside("gold.user_features", "customer_id", "segment", "lifetime_value")
ORDERS = Beside("silver.orders", "customer_id", "order_status", "net_amount",
                ("order_date", "moment"))  # fmt: skip
SESSIONS = Beside("silver.sessions", "user_id", "device", "product_views", ("session_day", "day"))
REVENUE = Beside("gold.daily_revenue", "day", "customers", "revenue", ("day", "day"))
FUNNEL = Beside("gold.funnel_metrics", "day", "device", "conversion_rate", ("day", "day"))
CATEGORIES = Beside("gold.daily_metrics", "dimension_value", "metric_type", "metric_count",
                    ("metric_date", "day"))  # fmt: skip
PRODUCTS = Beside("silver.products", "product_id", "category", "price")

SUBJECTS = (
    Subject("silver.orders", ("order_date", "moment"), {
        "id": ("{}order_id",), "k": ("{}item_count",), "big": ("{}source_lsn",),
        "amount": ("{}net_amount", "{}total_amount"), "rate": ("{}discount_amount",),
        "x": ("cast({}tax_amount as double)", "({}total_amount / {}item_count)"),
        "name": ("{}order_status", "{}shipping_city", "{}customer_email", "{}payment_method"),
        "flag": ("({}shipped_date is null)", "({}order_status <> 'cancelled')"),
        "day": ("cast({}order_date as date)", "cast({}shipped_date as date)"),
        "local": ("cast({}shipped_date as timestamp)", "cast({}order_date as timestamp)"),
        "moment": ("{}order_date", "{}required_date", "{}shipped_date"), "tags": ("{}items",),
        "item": ("{}items[1].product_id", "{}shipping_state"),
    }, (("f.customer_id", CUSTOMERS), ("f.customer_id", FEATURES), ("f.customer_id", SESSIONS),
        ("cast(f.order_date as date)", REVENUE), ("f.items[1].product_id", PRODUCTS))),
    Subject("silver.sessions", ("session_day", "day"), {
        "id": ("{}session_id",), "k": ("{}product_views",), "big": ("{}duration_seconds",),
        "amount": ("cast({}events as decimal(10, 2))",),
        "rate": ("cast({}product_views as decimal(9, 4))",),
        "x": ("({}duration_seconds / {}events)",),
        "name": ("{}entry_page", "{}device", "{}referrer"),
        "flag": ("{}purchased", "{}added_to_cart"), "day": ("{}session_day",),
        "local": ("cast({}started_at as timestamp)",), "moment": ("{}started_at", "{}ended_at"),
        "item": ("{}user_id",),
    }, (("f.user_id", CUSTOMERS), ("f.user_id", ORDERS), ("f.session_day", REVENUE),
        ("f.session_day", FUNNEL))),
    Subject("silver.customers", None, {
        "id": ("{}source_lsn",), "k": ("length({}city)",), "big": ("{}source_lsn",),
        "amount": ("cast({}source_lsn as decimal(12, 2))",),
        "rate": ("cast(length({}zip) as decimal(7, 4))",), "x": ("sqrt({}source_lsn)",),
        "name": ("{}full_name", "{}city", "{}segment", "{}phone"), "flag": ("{}_is_current",),
        "day": ("cast({}created_at as date)",), "local": ("cast({}_valid_to as timestamp)",),
        "moment": ("{}_valid_from", "{}_valid_to", "{}updated_at"), "item": ("{}country",),
    }, (("f.customer_id", FEATURES), ("f.customer_id", ORDERS), ("f.customer_id", SESSIONS))),
    Subject("silver.products", None, {
        "id": ("{}product_id",), "k": ("{}warranty_months",), "big": ("{}stock_quantity",),
        "amount": ("{}price", "{}cost"), "rate": ("{}weight_kg",),
        "x": ("cast({}weight_kg as double)",), "name": ("{}name", "{}color", "{}subcategory"),
        "flag": ("({}cost is null)",), "day": ("cast({}updated_at as date)",),
        "local": ("cast({}created_at as timestamp)",), "moment": ("{}created_at",),
        "item": ("{}category",),
    }, (("f.category", CATEGORIES), ("f.product_id", PRODUCTS))),
    Subject("gold.daily_metrics", ("metric_date", "day"), {
        "id": ("(cast({}metric_date as varchar) || {}dimension_value)",),
        "k": ("{}metric_count",), "big": ("{}metric_count",), "amount": ("{}metric_value",),
        "rate": ("cast({}metric_value as decimal(9, 4))",),
        "x": ("({}metric_value / {}metric_count)",), "name": ("{}metric_type", "{}dimension_key"),
        "flag": ("({}metric_type = 'daily')",), "day": ("{}metric_date",),
        "local": ("cast({}metric_date as timestamp)",),
        "moment": ("cast({}metric_date as timestamptz)",), "item": ("{}dimension_value",),
    }, (("f.metric_date", REVENUE), ("f.metric_date", FUNNEL))),
    Subject("gold.user_features", None, {
        "id": ("{}customer_id",), "k": ("{}active_days", "{}cancelled_orders"), "big": ("{}items",),
        "amount": ("{}lifetime_value", "{}average_order"),
        "rate": ("cast({}average_order as decimal(9, 4))",),
        "x": ("({}lifetime_value / {}orders)",),
        "name": ("{}segment", "{}country"), "flag": ("({}orders > 0)",),
        "day": ("{}last_session_day",), "local": ("cast({}first_order_at as timestamp)",),
        "moment": ("{}last_order_at", "{}first_order_at"), "item": ("{}segment",),
    }, (("f.customer_id", ORDERS), ("f.customer_id", CUSTOMERS))),
)  # fmt: skip
COLUMNS = {**FACTS, "integer": ["k", "big"]}
"""As facts have them, but for the key: the shop's are mostly texts."""
_ROLE = re.compile(
    r"\b([fg])\.(?:(tags\[1\]|point\.label)|"
    r"(id|k|big|amount|rate|x|name|flag|day|local|moment|tags)\b)"
)


class ShopMaker(Maker):
    """Makes questions about the shop by chance; the same ones from the same seed."""

    columns = COLUMNS
    subject = SUBJECTS[0]

    def question(self) -> str:
        """The next question."""
        # Half of them are about orders and sessions, of which the latest days are hot.
        self.subject = self.pick(*SUBJECTS[:2], *SUBJECTS)
        self.table, self.time = self.subject.table, self.subject.time
        chosen = {role: self.chance.choice(found) for role, found in self.subject.roles.items()}
        asked = self._question()

        def played(found: re.Match[str]) -> str:
            # Where there is no list, one asks for the length of a text.
            role = chosen.get(found[3] or "item") or chosen["name"]
            return role.replace("{}", f"{found[1]}.")

        return _ROLE.sub(played, asked)

    def _beside(self) -> tuple[str, Beside]:
        return self.chance.choice(self.subject.beside)

    def _held(self, beside: Beside) -> str:
        """A condition by which only what is hot of a joined table counts, mostly."""
        if beside.time is None or self.chance.random() < 0.05:
            return f"d.{beside.weight} is not null"
        return self.within(f"d.{beside.time[0]}", beside.time[1])

    def _by_rows(self, scope: str) -> str:
        """A condition on the rows of another table."""
        own, other = self._beside()
        own = own.replace("f.", scope)
        of = f"from {other.table} d where {self._held(other)}"
        return str(self.pick(
            f"{own} in (select d.{other.key} {of})",
            f"{own} not in (select d.{other.key} {of})",
            f"exists (select 1 {of} and d.{other.key} = {own})",
            f"not exists (select 1 {of} and d.{other.key} = {own} and d.{other.weight} > 2)",
            f"{scope}amount > (select avg(d.{other.weight}) {of})",
            f"{scope}k <= (select max(d.{other.weight}) {of} and d.{other.key} = {own})",
        ))  # fmt: skip

    def joined(self) -> str:
        own, other = self._beside()
        held, on = self._held(other), f"{own} = d.{other.key}"
        what = self.pick(
            f"select f.id as id, d.{other.label}, d.{other.weight}, "
            f"{self.value('decimal', 1)} as v",
            f"select d.{other.label} as l, count(*) as n, sum(f.amount * d.{other.weight}) as s, "
            f"{self.aggregate()} as a",
        )
        grouped = f" group by d.{other.label}" if "count(*) as n" in what else ""
        whole = f"{what} from {self.table} f"
        beside = f"(select * from {other.table} d where {held}) d"
        return str(self.pick(
            f"{whole} join {other.table} d on {on} where {self.where(1)} and {held}{grouped}",
            f"{whole} join {other.table} d on {on} and {held} where {self.where(1)}{grouped}",
            f"{whole} left join {beside} on {on} where {self.where(0)}{grouped}",
            f"{whole} left join {other.table} d on {on} and {held} where {self.where(1)}{grouped}",
            f"{whole} left join {beside} on {on} and f.amount > d.{other.weight} "
            f"where {self.where(0)}{grouped}",
            f"{what} from (select * {self.source(1)}) f full join {beside} on {on}{grouped}",
            f"{what} from (select * {self.source(1)}) f right join {beside} on {on}{grouped}",
            f"select f.id as id, f.name {self._half(own, other)}",
        ))  # fmt: skip

    def _half(self, own: str, other: Beside) -> str:
        beside = f"(select * from {other.table} d where {self._held(other)}) d"
        return (f"from {self.table} f {self.pick('semi', 'anti')} join {beside} "
                f"on {own} = d.{other.key} where {self.where(1)}")  # fmt: skip

    def nested(self) -> str:
        own, other = self._beside()
        family = self.pick("integer", "decimal", "text", "timestamp")
        inner = (f"select f.id as id, f.k as k, {own} as own, {self.value(family, 2)} as v "
                 f"{self.source(1)}")  # fmt: skip
        of = f"from {other.table} d where {self._held(other)}"
        outer = self.pick(
            "select k, count(v) as n, max(v) as m from t group by k",
            f"select t.id, d.{other.label} from t join {other.table} d on d.{other.key} = t.own "
            f"where {self._held(other)}",
            f"select id, v from t where own in (select d.{other.key} {of})",
            f"select id from t where not exists (select 1 {of} and d.{other.key} = t.own)",
            f"select id, (select max(d.{other.weight}) {of} and d.{other.key} = t.own) as w from t",
            "select k * 2 as kk, kk + 1 as more from t where kk > 0",
            "select distinct k, v is null as gone from t order by 1 nulls first, 2",
        )
        return f"with t as ({inner}) {outer}"

    def chained(self) -> str:
        own, other = self._beside()
        inner = f"select f.id as id, {own} as own, f.amount as a, f.flag as flag {self.source(1)}"
        beside = (
            f"select d.{other.key} as own, sum(d.{other.weight}) as b, count(*) as n "
            f"from {other.table} d where {self._held(other)} group by d.{other.key}"
        )
        return str(self.pick(
            f"with t as ({inner}), s as ({beside}) select t.id, t.a, s.b, t.a - s.b as rest "
            "from t left join s on t.own = s.own where s.n > 1 or s.n is null",
            f"with t as ({inner}), s as ({beside}), u as (select own from t union "
            "select own from s) select count(*) as n, count(own) as o from u",
            f"with t as ({inner}) select * from (select id, own, row_number() over "
            "(partition by own order by a desc nulls last, id) as r from t) x where x.r <= 2",
            f"with t as ({inner}), s as (select own, flag, sum(a) as b from t group by own, flag) "
            "select own, b, rank() over (order by b desc nulls last, own, flag) as r from s",
            f"with o as (with t as ({inner}) select own, max(a) as m from t group by own having "
            f"m > 0), s as ({beside}) select o.own, o.m, s.n from o join s on s.own = o.own",
            f"with t as ({inner}) select flag, total from (select flag, sum(a) as total from t "
            "group by flag) g where total > (select avg(a) from t)",
        ))  # fmt: skip

    def scalars(self) -> str:
        own, other = self._beside()
        of = f"from {other.table} d where {self._held(other)}"
        one = self.pick(
            f"(select count(*) {of} and d.{other.key} = {own})",
            f"(select sum(d.{other.weight}) {of} and d.{other.key} = {own} "
            f"and d.{other.weight} < f.amount)",
            f"(select max(d.{other.weight}) {of})", f"(select avg(d.{other.weight}) {of})",
        )  # fmt: skip
        return f"select f.id as id, {one} as s, {self.values(1)} {self.source(1)}"
