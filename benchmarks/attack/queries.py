"""The most expensive queries that the guard allows, and the dashboards' queries meanwhile."""

from __future__ import annotations

WORST = [
    # wide and repeated text
    "select length(rpad('x', 2000000000, 'y'))",
    "select format('{:999999999}', 1)",
    "select length(repeat('x', 2000000000))",
    "select length(rpad(note, least(customer_id + 900000, 999999), 'y')) from silver.orders",
    "select max(length(repeat(note, least(order_id, 9000)))) from silver.orders",
    "select len(range(1, 999999)) from silver.orders",
    # joins without a condition, and endless rows
    "select count(*) from silver.orders a, silver.orders b where a.note < b.note",
    "select sum(a.order_id * b.order_id) from silver.orders a cross join silver.orders b",
    "select count(*) from range(100000000000) a, range(100000000000) b",
    "select sum(hash(i)) from range(100000000000) t(i)",
    # aggregates that keep all values
    "select list(a.note order by a.note) from silver.orders a, range(1000)",
    "select string_agg(note || order_id, ',') from silver.orders, range(2000)",
    "select map_from_entries(list((order_id + i, note))) from silver.orders, range(500) t(i)",
    "select count(distinct note || i) from silver.orders, range(100000) t(i)",
    "select order_id, row_number() over (order by hash(order_id + i)) as n "
    "from silver.orders, range(1000) t(i) order by n desc limit 5",
    # recursion
    "with recursive r as (select 1 as i union all select i + 1 from r) select max(i) from r",
    "with recursive r as (select 'x' as s union all select s || s from r) select max(length(s)) "
    "from r",
    # patterns
    "select count(*) from silver.orders, range(100000) where regexp_matches(note || note || note, "
    "'(.*)*(.*)*(.*)*(.*)*x{50}')",
    "select max(levenshtein(repeat(a.note, 900), repeat(b.note, 901))) from silver.orders a, "
    "silver.orders b",
    # large answers
    "select * from silver.orders limit 90000",
    "select repeat(note, 50) from silver.orders limit 90000",
]
LARGE = "select order_id, note, repeat('{n}', 16) as a from silver.orders limit 90000"
"""An answer of 18 MB, a different one for each {n}."""
HOT = [
    "select count(*) from silver.orders where ordered_at >= current_date - interval 1 day "
    "and order_id <> {n}",
    "select customer_id, sum(amount) from silver.orders where ordered_at >= current_date "
    "- interval 2 day and order_id <> {n} group by customer_id order by 2 desc limit 10",
    "select cast(ordered_at as date) as day, count(*), sum(amount) from silver.orders where "
    "ordered_at >= current_date - interval 5 day and order_id <> {n} group by 1 order by 1",
    "select c.city, sum(o.amount) from silver.orders o join silver.customers c using (customer_id) "
    "where o.ordered_at >= current_date - interval 1 day and o.order_id <> {n} group by 1",
]
"""Queries of a dashboard. A different {n} each time avoids the result cache."""
