"""Maintenance: evaluate tables from metadata, plan work within a budget, apply it, verify it.

`table_health` says how a table's files stand. `maintenance_plan` makes tasks of it (`task`), ranked
by what they save. `file_rewrite` joins small files and applies deletes, and publishes only what is
verified to hold the same rows. `removal` deletes files that nothing needs any more. `service`
applies a plan, and `journal` keeps what was done in the table `ops.maintenance`.
"""
