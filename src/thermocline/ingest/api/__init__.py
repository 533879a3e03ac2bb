"""REST APIs into bronze: `source` reads the settings, `session` makes every network connection,
`pull` takes records from dlt's rest_api, `position` filters the new ones, and `feed` makes batches
of them.
"""
