"""Workers: processes that compute partitions in parallel.

A **work unit** is a value that fits into a line of JSON: some partitions of a table, or a whole
step, with the snapshots to read and the branch to write (`work_unit`). Any worker can compute it
(`partition_worker`): a process of this machine (`pool`), a task of a Spark cluster (`cluster`), or
a process that an external scheduler started (`thermo work`). Its files are committed by group
commit under the unit's key, so a unit that is computed twice lands once. Runs use workers through
`executor`, backfills through `backfill`.
"""
