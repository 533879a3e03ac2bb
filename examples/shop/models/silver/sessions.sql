-- Visits: clicks of one user with no pause over 30 minutes. A visit is cut at midnight UTC, so that
-- every day can be computed from that day's clicks alone; clicks that were sent twice count once.
with clicks as (
    select
        event_id,
        user_id,
        event_type,
        event_ts,
        page,
        referrer,
        device,
        cast(event_ts as date) as session_day,
        row_number() over (
            partition by cast(event_ts as date), event_id
            order by event_ts, user_id
        ) as copy
    from bronze.raw_events
),
paused as (
    select
        *,
        lag(event_ts) over (
            partition by session_day, user_id
            order by event_ts, event_id
        ) as before_ts
    from clicks
    where copy = 1
),
numbered as (
    select
        *,
        sum(case when event_ts > before_ts + interval 30 minute then 1 else 0 end) over (
            partition by session_day, user_id
            order by event_ts, event_id
            rows between unbounded preceding and current row
        ) as pauses
    from paused
),
placed as (
    select
        *,
        row_number() over (
            partition by session_day, user_id, pauses
            order by event_ts, event_id
        ) as place
    from numbered
)
select
    user_id || '/' || cast(session_day as varchar) || '/' || cast(pauses + 1 as varchar)
        as session_id,
    session_day,
    user_id,
    min(event_ts) as started_at,
    max(event_ts) as ended_at,
    cast(
        date_diff('second', date_trunc('second', min(event_ts)), date_trunc('second', max(event_ts)))
        as bigint
    ) as duration_seconds,
    cast(count(*) as bigint) as events,
    max(case when place = 1 then page end) as entry_page,
    max(case when place = 1 then referrer end) as referrer,
    max(case when place = 1 then device end) as device,
    cast(sum(case when event_type = 'product_view' then 1 else 0 end) as bigint) as product_views,
    max(case when event_type = 'add_to_cart' then 1 else 0 end) = 1 as added_to_cart,
    max(case when event_type = 'checkout' then 1 else 0 end) = 1 as checked_out,
    max(case when event_type = 'purchase' then 1 else 0 end) = 1 as purchased
from placed
group by session_day, user_id, pauses
