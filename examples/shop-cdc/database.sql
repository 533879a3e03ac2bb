-- The order database, as its owner makes it.
create table orders (
    order_id text primary key,
    customer_id text not null,
    order_status text not null,
    order_date timestamptz not null,
    items jsonb not null,
    total_amount numeric(12, 2) not null,
    updated_at timestamptz not null
);
-- A delete then says the whole row, and a large value is sent also when it did not change.
alter table orders replica identity full;

-- Events that are written in the transaction of what they tell of. Rows may be deleted at once.
create table outbox (
    id uuid primary key default gen_random_uuid(),
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb not null
);

-- A user that may read and replicate, and owns the publications it makes. Give it a password.
create role lake login replication;
grant select on orders, outbox to lake;
-- Publications are made by the tables' owner; the sources name them.
create publication lake_orders for table orders;
create publication lake_outbox for table outbox;
