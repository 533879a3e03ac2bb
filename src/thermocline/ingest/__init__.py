"""Outside → bronze: each file lands exactly once, and what cannot land is kept with its reason.

`source` says where data comes from, `landing` lists it, `examine` hashes and judges a file,
`stage` rewrites what Spark cannot read as it is, `read` makes rows and reasons of it, `files`
joins them to commits, `quarantine` keeps the bad rows and puts mended ones through.
"""
