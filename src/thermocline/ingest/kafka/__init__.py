"""Kafka into bronze: `source` reads the settings, `broker` describes the topics, `offset_ranges`
plans which offsets to read next and detects lost ones, `message_text` decodes values to JSON text,
and `feed` makes batches. `arrow_reader` reads batches without Spark.
"""
