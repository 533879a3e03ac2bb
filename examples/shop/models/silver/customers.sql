-- Profiles as they were sent, made comparable. One row in, one row out: history is kept by the
-- contract's write mode, which also splits it when a change arrives late.
select
    customer_id,
    lower(trim(email)) as email,
    first_name,
    last_name,
    trim(first_name || ' ' || last_name) as full_name,
    translate(phone, '+-() .', '') as phone,
    address.street as street,
    address.city as city,
    address.state as state,
    address.zip as zip,
    address.country as country,
    segment,
    source_system,
    created_at,
    updated_at,
    _lsn as source_lsn,
    _op
from bronze.raw_customers
