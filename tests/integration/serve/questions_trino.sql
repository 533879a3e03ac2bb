select k, count(*), sum(amount), avg(amount), avg(k), min(day), max(moment) from silver.facts group by k order by k
select amount / 3, amount / k, amount / rate, k / 3, k % 3, x / 3, amount / 2 from silver.facts where k <> 0 and rate <> 0
select sum(amount) / count(*), sum(amount * rate) / sum(rate), round(avg(amount), 1), sum(k) / count(*) from silver.facts
select upper(name), lower(name), length(name), substr(name, 1, 2), replace(name, 'a', 'b'), name || '!', concat(name, '-', name) from silver.facts
select round(amount, 1), round(x, 2), floor(amount), ceil(x), floor(k), abs(amount), cast(amount as integer) from silver.facts
select cast(x as integer), cast(x as bigint) from silver.facts where x > -1000 and x < 1000
select date_trunc('month', day), date_trunc('week', local), date_trunc('day', moment), day + interval '1' month, local - interval '36' hour, date_add('day', -7, day), date_add('month', 1, local) from silver.facts
select date_diff('day', local, timestamp '2026-03-02 12:00:00'), date_diff('hour', local, timestamp '2026-03-01 00:30:00'), date_diff('day', day, date '2026-03-01'), date_diff('minute', local, timestamp '2026-03-01 00:30:00') from silver.facts
select year(day), month(local), day_of_week(day), extract(dow from day), week(day), day_of_year(moment), quarter(day), hour(moment), second(local) from silver.facts
select id, x > 1, x = x, x <> x, x >= 2.5, x < 0, x is null from silver.facts
select max(x), min(x), max(f), count(distinct x) from silver.facts where x is null or x > -1e300
select max(x) filter (where k = 1), max(x) filter (where k > 1000) from silver.facts
select id, tags[1], element_at(tags, 2), cardinality(tags) from silver.facts where cardinality(tags) > 0
select date_format(local, '%Y-%m-%d %H:%i:%s'), cast(day as varchar), cast(k as varchar), cast(amount as varchar), cast(flag as varchar) from silver.facts
select id, row_number() over (partition by k order by amount desc, id), sum(amount) over (partition by k order by id), avg(amount) over (partition by k), lag(k) over (order by id), rank() over (order by k) from silver.facts
select f.id, d.label from silver.facts f left join silver.dims d on f.k = d.k where f.day >= date '2026-03-01'
select k, label from silver.facts join silver.dims using (k) group by k, label
select count_if(k > 1), count_if(k > 1) filter (where k > 1000), bool_and(flag), bool_or(flag), stddev(k), variance(amount), count(*) filter (where flag) from silver.facts
select greatest(k, 1), least(amount, 5.00), coalesce(k, 0), nullif(k, 1), if(k > 1, 'a', 'b'), case when flag then k end from silver.facts
select k from silver.facts union select k from silver.dims
select k from silver.facts except select k from silver.dims
select k from silver.facts intersect select k from silver.dims
with t as (select k, sum(amount) s from silver.facts group by k) select k, s from t where s > (select avg(s) from t)
select name from silver.facts where name like 'a\_%' or name like 'a!_b' escape '!' or regexp_like(name, '[0-9]+')
select count(*) from silver.facts where moment >= timestamp '2026-03-01 00:00:00' and moment < timestamp '2026-03-02 00:00:00 UTC'
select count(*) from silver.facts where local between timestamp '2026-03-01 00:00:00.000001' and timestamp '2026-03-05 00:00:00'
select to_unixtime(local), to_unixtime(moment) from silver.facts
select "K" as "Kay", Id, NAME from silver.facts where id < 3
select flag, k, count(*) from silver.facts group by rollup (flag, k)
select id, cast(moment as date), date(local), cast(local as timestamp(6)), cast(day as timestamp(6)) from silver.facts
select strpos(name, 'b'), position('a' in name), starts_with(name, 'a'), trim(both ' ' from name) from silver.facts
select avg(rate), sum(rate), avg(amount * rate), avg(amount) from silver.facts where k = 1
select point.lon, point.label, point from silver.facts where id < 20
select id, x from silver.facts order by x desc nulls first, id
select id, x from silver.facts order by x nulls first, id limit 40
select id, row_number() over (order by x nulls first, id) as n from silver.facts
select id, 1 / x as a, 1e0 / -x as b, power(x, -1) as c, x / (x * 0) as d, amount / nullif(rate, 0.0000) as e, k / nullif(k, 0) as f from silver.facts
select x, 1 / x as q, count(*) as n from silver.facts group by x, 1 / x
select date_trunc('second', cast(local as timestamp)), date_trunc('minute', cast(local as timestamp)), date_trunc('hour', cast(moment as timestamp)), date_trunc('day', cast(day as timestamp)) from silver.facts
select date_trunc('week', cast(local as timestamp)), date_trunc('month', cast(local as timestamp)), date_trunc('quarter', cast(moment as timestamp)), date_trunc('year', cast(local as timestamp)), count(*) from silver.facts group by 1, 2, 3, 4
select id, date_trunc('minute', cast(local as timestamp)) - interval '1' minute * (minute(cast(local as timestamp)) % 5) as m, date_trunc('hour', cast(moment as timestamp)) - interval '1' hour * (hour(cast(moment as timestamp)) % 6) as h, date_trunc('second', cast(local as timestamp)) - interval '1' second * (second(cast(local as timestamp)) % 30) as s from silver.facts
select id, date_trunc('week', cast(local as timestamp) + interval '1' day) - interval '1' day as a, date_trunc('week', cast(local as timestamp) + interval '1' day) + interval '5' day as b, date_trunc('week', cast(local as timestamp)) + interval '6' day as c from silver.facts
select id, cast(local as timestamp), cast(local as timestamp(0)), cast(moment as timestamp(3)), cast(moment as timestamp with time zone), cast(local as timestamp(6)) from silver.facts
select id, timestamp '2026-3-1 1:02:03.5', date '2026-3-1', local > timestamp '2026-03-01 00:00:00.1234', day >= date '2026-2-03' from silver.facts
select decimal '1.20', decimal '-0.005', decimal '0012', decimal '12345678901234567890.5', amount * decimal '1.5', amount / decimal '0.30' from silver.facts
select cast('1.25' as decimal(3, 1)), cast(amount as decimal), cast('7.5' as decimal), cast(k as decimal) from silver.facts
select id, case x when 2.5 then 'a' when 0 then 'b' when x + 0e0 then 'c' else 'd' end, case x / 0e0 when x then 1 end from silver.facts
select flag, k, grouping(flag, k), grouping(k), count(*) from silver.facts group by rollup (flag, k)
select k, flag, grouping(k) + grouping(flag) as g from silver.facts group by grouping sets ((k), (flag), (k, flag), ())
select try_cast(k as bigint), try_cast(amount as integer), try_cast(day as timestamp(6)), try_cast('x' as varchar) from silver.facts
select approx_distinct(k), approx_distinct(name) from silver.facts
select k, array_agg(id order by id), array_agg(name order by id desc) from silver.facts group by k
select array_agg(id order by id) filter (where k = 1) from silver.facts
select from_unixtime(id), from_unixtime(to_unixtime(moment)) from silver.facts
select concat_ws('-', name, cast(k as varchar), null, 'x') from silver.facts
select concat(name, 'a', name), name || cast(k as varchar) from silver.facts
select regexp_replace(name, '[0-9]+', 'x'), regexp_replace(name, '(a)(b)?', '$1-'), regexp_extract(name, '[a-z]+'), regexp_extract(name, '([a-z])([0-9])', 2) from silver.facts
select count(distinct k), count(distinct (k, flag)) from silver.facts
select day + interval '1' year, local - interval '90' minute, moment + interval '7' day, interval '2' day + day from silver.facts
select lower(name) as n, count(*) as c from silver.facts where date_trunc('day', cast(local as timestamp)) >= timestamp '2026-03-01 00:00:00.000000' group by 1 order by 2 desc, 1 limit 10
select id, try_cast(name as integer), try_cast(name as bigint), try_cast(name || '1' as double), try_cast(name as decimal(5, 1)), try_cast(name as date) from silver.facts where regexp_like(name, '^[a-z0-9]*$')
select try_cast(t as integer), try_cast(t as double), try_cast(t as decimal(4, 1)), try_cast(t as date) from (values ' 1', '1 ', '1.25', '-1.25', '+7', '', '.', '-.5', '1_0', 'x', '2026-3-1', ' 2026-03-01', '2026-02-30', '99999999999', '5.') r(t)
select cast(cast(k as varchar) as integer), cast(cast(amount as varchar) as decimal(12, 1)), cast(cast(amount as varchar) as double), cast(cast(day as varchar) as date) from silver.facts
select regexp_replace(name, '[0-9]+', 'x'), regexp_replace(name, '(a)(b)', '$2-$1'), regexp_extract(name, '[a-z]+'), regexp_extract(name, '([a-z])([0-9])', 2), regexp_replace(name, 'a|b') from silver.facts
select regexp_replace(u, '^https?://(?:www\.)?([^/]+)/.*$', '$1'), regexp_extract(u, '//([^/]+)/', 1) from (values 'http://www.x.org/a/b', 'https://y/c', 'none', '') t(u)
select id from silver.facts where name in ('a', 'b') or k between 1 and 3 or not exists (select 1 from silver.dims d where d.k = facts.k) order by id fetch first 5 rows only
