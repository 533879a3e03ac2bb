-- Orders as they stand: of each order the newest change, by its place in the source's log.
select
    order_id,
    customer_id,
    order_status,
    order_date,
    total_amount,
    updated_at,
    _lsn as source_lsn,
    _op
from bronze.raw_orders
