"""Workers: partitions computed by processes of their own, beside each other.

A **piece** of work is a value that fits into a line of JSON: some partitions of a table, or the
whole of a step, with the snapshots to read and the branch to write (`piece`). Whoever gets it can
do it (`work`): a process of this machine (`pool`), a task of a Spark cluster (`cluster`), or a
machine that somebody else's scheduler has started (`thermo work`). Its files are handed over by
group commit under the piece's own key, so a piece that is done twice lands once. What a run asks of
workers is in `executor`, what a person asks for in `backfill`.
"""
