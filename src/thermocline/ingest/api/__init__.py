"""REST APIs into bronze: `source` reads a source's settings, `session` is the one way out to the
network, `pull` takes records from dlt's rest_api, `position` knows which of them are new, `feed`
makes batches of them.
"""
