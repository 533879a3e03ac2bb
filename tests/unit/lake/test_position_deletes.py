"""Position-delete files with other paths keep their positions, columns, ids and notes."""

from __future__ import annotations

from io import BytesIO
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.lake.position_deletes import rewrite_paths

FIELDS = [
    pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
    pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
]
ROW = pa.field("row", pa.struct([pa.field("id", pa.int64())]), True, {"PARQUET:field_id": "9"})


def written(rows: pa.Table, **how: object) -> bytes:
    out = BytesIO()
    pq.write_table(rows, out, **how)
    return out.getvalue()


def map_location(path: str) -> str:
    return "s3://new/" + path.removeprefix("file:/old/")


@pytest.mark.parametrize("seed", range(6))
def test_each_row_names_its_file_at_the_new_place(seed: int) -> None:
    dice = Random(seed)
    count = dice.choice([1, 5, 3000])
    paths = [f"file:/old/{dice.randrange(4)}/ä {dice.randrange(3)}.parquet" for _ in range(count)]
    pairs = sorted({(path, dice.randrange(10**6)) for path in paths})
    columns = {"file_path": [p for p, _ in pairs], "pos": [n for _, n in pairs]}
    fields = list(FIELDS)
    if dice.random() < 0.5:
        columns["row"] = [{"id": n} for _, n in pairs]
        fields.append(ROW)
    schema = pa.schema(fields, metadata={"delete-type": "position"})
    rows = pa.table(columns, schema=schema)
    file = written(rows, compression=dice.choice(["zstd", "snappy", "none"]),
                   row_group_size=dice.choice([7, 10**6]))  # fmt: skip
    found = rewrite_paths(file, map_location)
    parquet = pq.ParquetFile(BytesIO(found.content))
    again = parquet.read()
    assert again.schema.equals(schema, check_metadata=True)
    wanted = sorted((map_location(path), number) for path, number in pairs)
    assert list(zip(again["file_path"].to_pylist(), again["pos"].to_pylist())) == wanted
    if "row" in columns:
        assert [each["id"] for each in again["row"].to_pylist()] == [n for _, n in wanted]
    assert (found.low, found.high) == (wanted[0][0], wanted[-1][0])
    assert found.size == len(found.content)
    assert len(found.offsets) == parquet.metadata.num_row_groups
    assert found.offsets[0] == 4
    assert rewrite_paths(file, map_location) == found


def test_a_file_without_rows_has_no_bounds() -> None:
    found = rewrite_paths(written(pa.schema(FIELDS).empty_table()), map_location)
    assert (found.low, found.high) == (None, None)


def test_a_file_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no paths"):
        rewrite_paths(written(pa.table({"id": [1]})), map_location)
