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
select id, 1 / x as a, 1e0 / -x as b, power(x, -1) as c, x / (x * 0) as d, amount / nullif(rate, 0) as e, k / nullif(k, 0) as f from silver.facts
select x, 1 / x as q, count(*) as n from silver.facts group by x, 1 / x
