"""Orders as they stand: one row an order, with the amounts that follow from its items.

Sums over nested items have no form in SQL that DuckDB and Spark share, hence a function. Each row
comes from one change record alone, so a run reads only what was appended since the last one; the
contract's order decides which record of an order is the newest.
"""

from pyspark.sql import DataFrame

from thermocline.transform import changes, model

# Σ quantity · unit_price · (1 − discount) has at most four decimals; it is rounded once, at last.
_SUM = """
    aggregate(items, cast(0 as decimal(18,4)), (total, item) -> cast(
        total + cast(item.quantity as decimal(10,0)) * item.unit_price * ({part}) as decimal(18,4)))
"""
_AFTER_DISCOUNT = _SUM.format(part="cast(1 as decimal(5,2)) - item.discount")
_BEFORE_DISCOUNT = _SUM.format(part="cast(1 as decimal(5,2))")


@model(reads={"raw": changes("bronze.raw_orders")})
def orders(raw: DataFrame) -> DataFrame:
    """Tax is 8 %; shipping is 9.99 unless the subtotal is over 100; cents are rounded half up."""
    priced = raw.selectExpr(
        "*",
        f"cast(round({_BEFORE_DISCOUNT}, 2) as decimal(12,2)) as gross",
        f"cast(round({_AFTER_DISCOUNT}, 2) as decimal(12,2)) as subtotal",
    ).selectExpr(
        "*",
        "cast(round(subtotal * cast(0.08 as decimal(4,2)), 2) as decimal(12,2)) as tax_amount",
        "cast(case when subtotal > 100 then 0 else 9.99 end as decimal(10,2)) as shipping_cost",
    )
    return priced.selectExpr(
        "order_id",
        "customer_id",
        "lower(trim(customer_email)) as customer_email",
        "order_status",
        "order_date",
        "required_date",
        "shipped_date",
        "cast(size(items) as int) as item_count",
        "items",
        "subtotal",
        "cast(gross - subtotal as decimal(12,2)) as discount_amount",
        "tax_amount",
        "shipping_cost",
        "cast(subtotal + tax_amount + shipping_cost as decimal(12,2)) as net_amount",
        "total_amount",
        "shipping_address.city as shipping_city",
        "shipping_address.state as shipping_state",
        "shipping_address.country as shipping_country",
        "payment_method",
        "updated_at",
        "_lsn as source_lsn",
        "_op",
    )
