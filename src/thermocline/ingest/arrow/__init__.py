"""Read landing files into Arrow in this process: the Arrow lane for files.

`reader` reads the files of a batch one after the other; `jsonl`, `csv` and `parquet` read each
format, and `text_blocks` splits text into blocks of whole lines. `ambiguous` collects the records
that may need Spark; `local_validation` validates as many of them as it can without Spark.
"""
