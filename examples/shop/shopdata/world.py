"""What the shop's source system holds at any moment: rows as Arrow tables, drawn on demand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shopdata.draws import Floats, Ints, decimals, instants, integers, padded, pick, text, uniform

DAYS = 91
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
_LOG_BEGAN = 1_577_836_800 * SECOND  # 2020-01-01, the source's log position 0

SEGMENTS = ("consumer", "small_business", "enterprise", "vip")
PAYMENTS = ("card", "paypal", "bank_transfer", "invoice", "gift_card")
STATUSES = ("pending", "processing", "shipped", "delivered", "cancelled")
CATEGORIES = {
    "Electronics": ("Phones", "Laptops", "Tablets", "Audio"),
    "Clothing": ("Women", "Men", "Kids", "Accessories"),
    "Home & Garden": ("Furniture", "Kitchen", "Decor", "Outdoor"),
    "Sports": ("Fitness", "Water Sports", "Team Sports", "Camping"),
    "Books": ("Fiction", "Science", "Travel", "Children"),
    "Toys": ("Puzzles", "Games", "Models", "Plush"),
    "Health": ("Vitamins", "Care", "Optics", "Sleep"),
    "Automotive": ("Tools", "Tyres", "Lighting", "Interior"),
}
_FIRST = (
    "Ada", "Béla", "Chloé", "Dmitri", "Elif", "Farah", "Grace", "Hiro", "Inés", "Jonas", "Kofi",
    "Łucja", "Maya", "Nils", "Olga", "Priya", "Quentin", "Rosa", "Søren", "Tomás", "Uma", "Zoë",
)  # fmt: skip
_FIRST_ASCII = (
    "ada", "bela", "chloe", "dmitri", "elif", "farah", "grace", "hiro", "ines", "jonas", "kofi",
    "lucja", "maya", "nils", "olga", "priya", "quentin", "rosa", "soren", "tomas", "uma", "zoe",
)  # fmt: skip
_LAST = (
    "Abbott", "Baker", "Castillo", "Dubois", "Eriksen", "Ferrari", "Gupta", "Haddad", "Ito",
    "Jensen", "Kowalski", "Lindqvist", "Mwangi", "Novak", "O'Brien", "Petrov", "Quispe", "Rossi",
    "Schmidt", "Tanaka", "Ueda", "Varga", "Weiss", "Yilmaz",
)  # fmt: skip
_PLACES = (
    ("Portland", "OR", "97", "USA"), ("Austin", "TX", "78", "USA"), ("Boston", "MA", "02", "USA"),
    ("Denver", "CO", "80", "USA"), ("Seattle", "WA", "98", "USA"), ("Miami", "FL", "33", "USA"),
    ("Chicago", "IL", "60", "USA"), ("Atlanta", "GA", "30", "USA"), ("Toronto", "ON", "41", "CAN"),
    ("Montréal", "QC", "42", "CAN"), ("Berlin", None, "10", "DEU"), ("Kraków", None, "30", "POL"),
)  # fmt: skip
_STREETS = ("Main St", "Oak Ave", "Station Rd", "Harbour Way", "Mill Lane", "Église Rd")
_NOUNS = ("Classic", "Compact", "Everyday", "Pro", "Light", "Heritage", "Trail", "Studio")


@dataclass(frozen=True)
class World:
    """One shop: everything below follows from these values and from nothing else."""

    seed: int
    customers: int
    products: int
    orders: int
    events: int
    until: date

    @property
    def end(self) -> int:
        """The first microsecond after the last day."""
        last = datetime(self.until.year, self.until.month, self.until.day, tzinfo=UTC)
        return int((last + timedelta(days=1)).timestamp()) * SECOND

    @property
    def start(self) -> int:
        """The first microsecond of the first day."""
        return self.end - DAYS * DAY

    @cached_property
    def joined(self) -> Ints:
        """When each customer joined, ascending: four in five before the first day."""
        index = np.arange(self.customers, dtype=np.int64)
        part = (index + uniform(self.seed, "joined", index)) / max(self.customers, 1)
        marks = [self.start - 274 * DAY, self.start, self.end - 3 * DAY]
        return np.interp(part, [0.0, 0.8, 1.0], marks).astype(np.int64)

    @cached_property
    def prices(self) -> Ints:
        """The list price of each product in cents: many cheap, few dear."""
        skewed = uniform(self.seed, "price", np.arange(self.products, dtype=np.int64)) ** 3
        return 499 + (skewed * 120_000).astype(np.int64)

    def moments(
        self, name: str, index: Ints, first: int, count: int, span: tuple[int, int]
    ) -> Ints:
        """Ascending instants inside the span for positions first … first+count−1.

        Evenings and weekends are busier, and business grows a little over time.
        """
        low, high = span
        hours = np.arange(low, high, HOUR, dtype=np.int64)
        edges = np.append(hours, high)
        clock, weekday = hours // HOUR % 24, (hours // DAY + 4) % 7
        weight = (0.3 + np.sin(np.pi * clock / 24.0) ** 2) * np.where(weekday % 6 == 0, 1.4, 1.0)
        weight = weight * np.diff(edges) * (1 + 0.3 * np.arange(len(hours)) / len(hours))
        shares = np.concatenate([[0.0], np.cumsum(weight) / weight.sum()])
        part = (index - first + uniform(self.seed, name, index)) / max(count, 1)
        return low + np.interp(part, shares, (edges - low).astype(np.float64)).astype(np.int64)


def change_columns(op: str, at: Ints, index: Ints) -> dict[str, pa.Array]:
    """Metadata of a change record, as a flattened Debezium envelope carries it.

    `_lsn` grows with the true order of changes in the source; fourteen low bits keep rows that
    changed in the same microsecond apart. It passes 2^53, as real ones do, so that a reader that
    takes JSON numbers for floats is noticed.
    """
    lsn = ((at - _LOG_BEGAN) << 14) | (index & 0x3FFF)
    return {
        "_op": pa.repeat(op, len(at)),
        "_ts_ms": pa.array(at // 1000),
        "_lsn": pa.array(lsn),
        "_txn": pa.array(at // SECOND).cast(pa.string()),
    }


def _address(world: World, index: Ints, salt: Ints) -> pa.StructArray:
    seed = world.seed
    place = integers(seed, "place", index, 0, len(_PLACES), salt)
    cities, states, zips, countries = (list(column) for column in zip(*_PLACES, strict=True))
    number = pa.array(integers(seed, "house", index, 1, 999, salt)).cast(pa.string())
    street = pick(_STREETS, integers(seed, "street", index, 0, len(_STREETS), salt))
    fields = {
        "street": text(number, " ", street),
        "city": pick(cities, place),
        "state": pick(states, place),
        "zip": text(pick(zips, place), padded("", integers(seed, "zip", index, 0, 999, salt), 3)),
        "country": pick(countries, place),
    }
    return pa.StructArray.from_arrays(list(fields.values()), list(fields.keys()))


def _email(world: World, index: Ints) -> pa.Array:
    first = integers(world.seed, "first", index, 0, len(_FIRST))
    last = integers(world.seed, "last", index, 0, len(_LAST))
    surname = pick([name.lower().replace("'", "") for name in _LAST], last)
    number = pa.array(index).cast(pa.string())
    return text(pick(_FIRST_ASCII, first), ".", surname, number, "@example.com")


def customers(world: World, index: Ints, version: Ints, changed: Ints, op: str) -> pa.Table:
    """Customer records. Version 0 is the profile as first made; a later version differs from it
    in one thing: segment, address or phone."""
    seed = world.seed
    what = np.where(version > 0, integers(seed, "what", index, 0, 3, version), -1)
    # A few addresses come as people type them; silver normalises them.
    shouted = uniform(seed, "shout", index) < 0.03
    email = _email(world, index)
    email = pc.if_else(shouted, text(" ", pc.utf8_upper(email)), email)
    segment = np.searchsorted([0.62, 0.84, 0.95], uniform(seed, "segment", index))
    # An update changes something: a segment moves to one of the other three.
    segment = np.where(what == 0, segment + integers(seed, "to", index, 1, 4, version), segment)
    salt = np.where(what == 2, version, 0)
    area = pa.array(integers(seed, "area", index, 200, 999, salt)).cast(pa.string())
    line = padded("", integers(seed, "line", index, 0, 9999, salt), 4)
    created = world.joined[index] if world.customers > int(index.max(initial=-1)) else changed
    return pa.table(
        {
            **change_columns(op, changed, index),
            "customer_id": padded("CUST-", index, 8),
            "email": email,
            "first_name": pick(_FIRST, integers(seed, "first", index, 0, len(_FIRST))),
            "last_name": pick(_LAST, integers(seed, "last", index, 0, len(_LAST))),
            "phone": text("+1 (", area, ") 555-", line),
            "address": _address(world, index, np.where(what == 1, version, 0)),
            "segment": pick(SEGMENTS, segment % len(SEGMENTS)),
            "created_at": instants(created),
            "updated_at": instants(changed),
            "source_system": pick(("web", "mobile", "store"), integers(seed, "from", index, 0, 3)),
        }
    )


def products(world: World, index: Ints, version: int, changed: Ints) -> pa.Table:
    """Product rows; a later version has another price and stock. `supplier` is in no contract."""
    seed, names = world.seed, list(CATEGORIES)
    category = integers(seed, "category", index, 0, len(names))
    branch = integers(seed, "branch", index, 0, 4)
    subs = [sub for subs in CATEGORIES.values() for sub in subs]
    factor = 100 if version == 0 else integers(seed, "factor", index, 85, 121, version)
    base = world.prices[index % max(world.products, 1)]
    price = base * factor // 100
    cost = base * integers(seed, "cost", index, 30, 71) // 100
    kilos = decimals(integers(seed, "weight", index, 10, 3000), 6, 2).cast(pa.string())
    color = pick(("Black", "White", "Red", "Blue", "Green"), integers(seed, "color", index, 0, 5))
    months = pick(("12", "24", "36"), integers(seed, "warranty", index, 0, 3))
    sub = pick(subs, category * 4 + branch)
    made = world.start - DAY - integers(seed, "made", index, 0, 300 * DAY)
    return pa.table(
        {
            "product_id": padded("PROD-", index, 6),
            "sku": text("SKU-", pick([n[:3].upper() for n in names], category), "-",
                        padded("", index, 5)),
            "name": text(pick(_NOUNS, integers(seed, "noun", index, 0, len(_NOUNS))), " ", sub),
            "description": text("For everyday use, in ", sub, '; called "', color, '" by us'),
            "category": pick(names, category),
            "subcategory": sub,
            "price": decimals(price, 10, 2),
            "cost": decimals(cost, 10, 2),
            "stock_quantity": pa.array(integers(seed, "stock", index, 0, 1000, version)),
            "attributes": text('{"color": "', color, '", "weight_kg": "', kilos,
                               '", "warranty_months": "', months, '"}'),
            "created_at": instants(made),
            "updated_at": instants(np.maximum(made, changed)),
            "supplier": padded("SUP-", integers(seed, "supplier", index, 0, 40), 3),
        }
    )  # fmt: skip


def orders(
    world: World,
    index: Ints,
    placed: Ints,
    at: Ints | int,
    op: str,
    changed: Ints | None = None,
    revision: int | Ints = 0,
) -> pa.Table:
    """Orders as they stood at `at`, changed when that state began or at `changed` where given.

    A revision above 0 is a correction of the payment method.
    """
    seed = world.seed
    status, since, shipped = state(world, index, placed, at)
    since = since if changed is None else changed
    # Guest checkout: the profile may appear up to two days after the first order.
    known = np.maximum(np.searchsorted(world.joined, placed + 2 * DAY), 1)
    buyer = np.floor(uniform(seed, "buyer", index) ** 1.6 * known).astype(np.int64)
    items, total = _items(world, index)
    due = placed + integers(seed, "due", index, 3, 11) * DAY
    return pa.table(
        {
            **change_columns(op, since, index),
            "order_id": padded("ORD-", index, 9),
            "customer_id": padded("CUST-", buyer, 8),
            "customer_email": _email(world, buyer),
            "order_status": pick(STATUSES, status),
            "order_date": instants(placed),
            "required_date": instants(due),
            "shipped_date": instants(shipped, shipped > at),
            "items": items,
            "shipping_address": _address(world, buyer, np.zeros_like(buyer)),
            "payment_method": pick(PAYMENTS, integers(seed, "payment", index, 0, 5, revision)),
            "total_amount": decimals(total, 12, 2),
            "updated_at": instants(since),
        }
    )


def state(world: World, index: Ints, placed: Ints, at: Ints | int) -> tuple[Ints, Ints, Ints]:
    """Status, since when, and when it is shipped (far in the future when it never is)."""
    seed = world.seed

    def delay(name: str, low: float, high: float) -> Ints:
        return integers(seed, name, index, int(low * HOUR), int(high * HOUR))

    steps = [placed, placed + delay("processing", 0.1, 6)]
    shipped = steps[1] + delay("shipping", 4, 66)
    never = np.int64(2**62)
    cancelled = uniform(seed, "cancelled", index) < 0.07
    stop = np.where(cancelled, steps[1] + delay("cancelling", 0.1, 3), never)
    shipped = np.where(cancelled, never, shipped)
    delivered = np.where(cancelled, never, shipped + delay("delivering", 20, 120))
    status, since = np.zeros_like(placed), placed.copy()
    for number, moment in enumerate([steps[1], shipped, delivered, stop], start=1):
        reached = moment <= at
        status, since = np.where(reached, number, status), np.where(reached, moment, since)
    return status, since, shipped


def _items(world: World, index: Ints) -> tuple[pa.ListArray, Ints]:
    """One to five items an order, and its subtotal in cents, rounded half up."""
    seed = world.seed
    count = 1 + np.searchsorted([0.45, 0.72, 0.88, 0.96], uniform(seed, "items", index))
    offsets = np.concatenate([[0], np.cumsum(count)])
    order = np.repeat(index, count)
    line = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], count)
    popular: Floats = uniform(seed, "product", order, line) ** 2.0
    product = np.floor(popular * world.products).astype(np.int64)
    quantity = integers(seed, "quantity", order, 1, 4, line)
    off = integers(seed, "discount", order, -20, 21, line).clip(0)
    price = world.prices[product]
    amount = np.add.reduceat(quantity * price * (100 - off), offsets[:-1]) if len(index) else count
    fields = {
        "product_id": padded("PROD-", product, 6),
        "quantity": pa.array(quantity, pa.int32()),
        "unit_price": decimals(price, 10, 2),
        "discount": decimals(off, 5, 2),
    }
    struct = pa.StructArray.from_arrays(list(fields.values()), list(fields.keys()))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct), (amount + 50) // 100
