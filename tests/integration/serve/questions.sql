select k%2 as k, count(*) as n from silver.facts group by k
select k%2 as k, count(*) as n from silver.facts group by 1
select k+1 as k, k*2 as m from silver.facts where k > 1
select k as j from silver.facts where j > 1 order by j, id
select -k as k, id from silver.facts order by k, id
select k, sum(amount) as amount from silver.facts group by k having amount > 10
select k, count(*) as n from silver.facts group by k having sum(amount) > 10 order by n desc, k
select ID, "K" as "Kay", Name as NAME from Silver.Facts where Id < 5
select * from silver.dims a join silver.dims b on a.k = b.k
select a.*, b.label as other from silver.dims a left join silver.dims b using (k)
select * from silver.dims natural join (select k, sum(amount) as s from silver.facts group by k) t
select k, label from silver.dims union select seen, cast(total as varchar) from gold.days
select count(*) from (select distinct k, flag from silver.facts)
select x from silver.facts group by x
select x, count(*) as n from silver.facts where x > 1 group by x
select a.id, b.id from silver.facts a join silver.facts b on a.x = b.x where a.id < 40 and b.id < 40
select case k when 1 then 'one' when 2 then 'two' else 'many' end as w, count(*) from silver.facts group by 1
select id, tags[1], tags[2], tags[-1], len(tags), point.lon from silver.facts
select sum(f), avg(f), min(f), max(f) from silver.facts
select min(x), max(x), sum(x), avg(x), stddev(x) from silver.facts where x < 1e14 and x > -1e14
select day, sum(amount) over (partition by day) as s, count(*) over () as n from silver.facts
select id, lag(k) over (order by id) as p, lead(k, 1, 0) over (order by id) as q from silver.facts
select percent_rank() over (order by id) as p, cume_dist() over (order by id) as c, id from silver.facts
select id, last_value(k) over (partition by flag order by id rows between unbounded preceding and unbounded following) as l from silver.facts
select k, grouping_id from (select k, 1 as grouping_id from silver.facts)
select k, flag, count(*) as n from silver.facts group by k, rollup (flag)
select k, flag, count(*) as n from silver.facts group by k, cube (flag)
select k, flag, count(*) as n from silver.facts group by grouping sets ((k), (flag), (k, flag))
select name from silver.facts where name ilike 'A%' or name ilike '%ü%'
select name, lower(name), length(name), trim(name), replace(name, '\', '/') from silver.facts
select name from silver.facts where regexp_matches(name, '[0-9]+') or name ~ '^a'
select name || k, concat(name, k, null), k || name from silver.facts
select date_part('dow', day), date_part('week', moment), hour(local), second(local), minute(moment) from silver.facts
select extract(epoch from local), epoch(day), extract(second from moment) from silver.facts
select day + interval 1 month, day - interval 1 week, local - interval 90 minute, moment + interval 1 year from silver.facts
select date_trunc('week', day), date_trunc('quarter', local), date_trunc('year', moment), date_trunc('second', local) from silver.facts
select date_diff('day', local, moment), date_diff('month', day, local), date_diff('year', day, moment), date_diff('hour', local, moment) from silver.facts
select cast(x as int) from silver.facts where x < 1e6 and x > -1e6
select cast(amount as int), cast(amount as double), cast(amount as decimal(10,1)), cast(k as decimal(10,3)), cast(flag as int), cast(k as boolean) from silver.facts
select cast(k as varchar), cast(amount as varchar), cast(day as varchar), cast(local as varchar), cast(flag as varchar) from silver.facts
select round(amount, 1), round(amount), round(rate, 2), round(k), floor(amount), ceil(rate), abs(amount), -amount from silver.facts
select round(x, 1), round(x, 3), round(x), abs(x), -x, sqrt(abs(k)), exp(k), power(k, 2) from silver.facts where x < 1e14
select k / 0, amount / 0, x / 0, 0 / k, amount / k, amount / rate, k // 0, k % 0, amount % 0.5, k // 2, k % 3 from silver.facts
select amount * rate, amount + rate, amount - k, amount * 2, rate * rate * rate, amount * amount * amount from silver.facts
select sum(amount * rate), sum(rate), avg(rate), avg(k), avg(big), sum(big), sum(k * 1.5) from silver.facts
select median(k), median(x), var_pop(k), variance(k), stddev_pop(amount), bool_or(flag), bool_and(flag), count_if(k > 1) from silver.facts
select greatest(k, 1), least(amount, 5), greatest(name, 'b'), least(day, date '2026-03-01'), greatest(x, 1.5) from silver.facts
select coalesce(k, 0.5), coalesce(amount, k), coalesce(x, k, amount), if(k > 1, k, amount), nullif(k, 1) from silver.facts
select id from silver.facts where k in (select k from silver.dims) and k not in (select k from silver.dims where k is not null and k > 2)
select id from silver.facts where k not in (select k from silver.dims)
select id from silver.facts where exists (select 1 from silver.dims where dims.k = facts.k and dims.weight > facts.amount)
select id, (select count(*) from silver.dims where dims.k = facts.k) as n from silver.facts
select id from silver.facts semi join silver.dims using (k)
select id from silver.facts anti join silver.dims using (k)
select d.k, f.id from silver.dims d cross join (select id from silver.facts where id < 3) f
select v.a, v.b from (values (1, 'x'), (2, null)) as v(a, b)
select 1 as one, 'a' as a, null as n, 1.50 as d, 1e0 as e, date '2026-01-01' as t, true as b
select count(*) from silver.facts where local >= '2026-03-01' and local < '2026-03-02'
select count(*) from silver.facts where moment >= timestamptz '2026-03-01 01:00:00+01:00'
select count(*) from silver.facts where day = '2026-03-01' or local = day or moment = local
select name, count(*) from silver.facts group by all order by name desc limit 5
select name from silver.facts order by name nulls first, id limit 50
select amount, x from silver.facts order by x desc, amount nulls first, id
select split_part(name, '_', 1), split_part(name, '_', 2), split_part(name, '%', 3), substring(name, 2, 1), left(name, 2), right(name, 1), strpos(name, 'b') from silver.facts
select flag and k > 1, flag or k > 1, not flag, flag is true, flag is not false, flag = (k > 1) from silver.facts
with a as (select k, count(*) as n from silver.facts group by k), b as (select n, count(*) as m from a group by n) select * from b
select t.k, t.n from (select k, count(*) as n, row_number() over (order by count(*) desc, k) as r from silver.facts group by k) t where t.r <= 3
select id, row_number() over (partition by k order by id) as r from silver.facts qualify row_number() over (partition by k order by id) = 1
select sum(k) filter (where flag), avg(amount) filter (where k > 100), count(*) filter (where false), min(x) filter (where flag) from silver.facts
select avg(distinct k), sum(distinct amount), count(distinct name), count(distinct x) from silver.facts
select count(*) as n from silver.facts where name < 'b' and name >= 'A'
select id from silver.facts where big > 2147483647 order by id
select id, big // 7, big % 7, big * 1.0, big / 3 from silver.facts
select contains(name, 'b'), contains(name, ''), ends_with(name, 'b'), ends_with(name, ''), ends_with(name, 'ü') from silver.facts
select regexp_replace(name, '[a-c]+', '-', 'g'), regexp_replace(name, '(a|b)', 'é', 'g') from silver.facts
select k, string_agg(name, '|' order by id), string_agg(name, '' order by amount desc, id) filter (where flag) from silver.facts group by k
select string_agg(name, ',' order by id) from silver.facts where k > 1000
select quantile_cont(k, 0.25), quantile_cont(big, 0.9), quantile_cont(k, 0) from silver.facts
select f.id from silver.facts f semi join silver.dims d on f.k = d.k and d.weight > f.amount where f.id > 3 or f.flag
select f.id from silver.facts f join gold.days g on g.day = f.day anti join silver.dims d on f.k = d.k
select upper(name), upper(name || 'ß'), lower(name || 'İΣ'), upper(lower(name)) from silver.facts
select letter, upper(letter) as u, lower(letter) as l, upper('a' || letter || '🏔b') as v, lower('A' || letter || ' B') as m from silver.letters
select max(ratio) as m, min(ratio) as l, count(*) as n from silver.dims
select max(ratio) as m, count(ratio) as n from silver.dims where ratio > 1 or ratio >= 0e0 or ratio = 0
select k, label from silver.dims where ratio > 1
select k, label from silver.dims where ratio in (0e0, 7e0)
select k, label from silver.dims where ratio >= 0e0 and ratio <= 2.5e0
select f.id, (select count(*) from silver.facts g where g.k = f.k) as n from silver.facts f
select id from silver.facts where not (k in (select k from silver.dims where k is not null) and flag) or amount > 99
select id, case when k not in (select k from silver.dims where k is not null) then 'a' else 'b' end as w from silver.facts
select id, x as v, -x as w from silver.facts order by v desc nulls first, id limit 40 offset 3
select id, x from silver.facts order by x nulls first, id
select id, row_number() over (order by x nulls first, id) as n, rank() over (partition by flag order by x desc nulls first) as r from silver.facts
select id from silver.facts where -x > 1 or (-x) = x
select string_agg(name, '|' order by x desc nulls first, id) as s from silver.facts
select id, 1 / x as a, 1 / -x as b, pow(x, -1) as c, pow(-x, -3) as d, x / (x * 0) as e from silver.facts
select id, 1 / x as q from (select id, x from silver.facts order by x, id limit 200) t
select x, 1 / x as q, count(*) as n from silver.facts group by x
select q, count(*) as n from (select distinct x, 1 / x as q from silver.facts) t group by q
select 1 / min(ratio) filter (where ratio = 0) as a, 1 / max(-ratio) filter (where ratio = 0) as b, k / ratio as c from silver.dims group by k, ratio
select id, 1 / first_value(x) over (partition by k order by x, id) as q from silver.facts
select k, avg(strlen(name)) as l, count(*) as c from silver.facts where name <> '' group by k having count(*) > 1 order by l desc, k limit 25
