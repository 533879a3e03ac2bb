"""The part that the contracts of tests share."""

HEAD = """\
apiVersion: v3.1.0
kind: DataContract
id: test.{name}
version: 1.0.0
status: active
schema:
  - name: {name}
    properties:
"""
"""A contract up to its columns; format it with the table's `name`."""
