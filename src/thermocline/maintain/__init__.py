"""Maintenance: evaluate tables from metadata, plan work within a budget, apply it, verify it.

`measure` says how a table's files stand. `plan` makes tasks of it, ranked by what they save.
`rewrite` joins small files and applies deletes, and publishes only what is verified to hold the
same rows. `removal` deletes files that nothing needs any more. `service` does all of it, once or
again and again, and `journal` keeps what was done in the table `ops.maintenance`.
"""
