"""External data into bronze: each record lands exactly once, or is quarantined with its reasons.

`source` reads the settings. For files, `landing` lists a folder, `inspection` hashes a file and
detects its format, `stage` rewrites what Spark cannot read, `record_reader` parses and validates
the records, and `files` lands them in batches. `feed` lands what `kafka`, `postgres` and `api`
read. `batch` writes a batch in one commit, with Spark or through the Arrow lane (`fast_path`,
`arrow`). `quarantine` keeps bad rows, and `replay` lands corrected ones.
"""
