"""Kafka into bronze: `source` reads the settings, `broker` asks what there is, `ranges` decides
which offsets are read next and whether any are missing, `values` makes JSON of what they hold,
`feed` makes batches of them.
"""
