"""Landing files read in this process, into Arrow: the swift lane for files.

`lane` takes the files of a batch one after the other, `jsonl`, `csv` and `parquet` read each
format, `text` cuts text into blocks of whole lines, and `odd` has Spark judge what is not plain.
"""
