"""What is wrong with a contract, said with its line."""

from __future__ import annotations

import pytest

from thermocline.contract import load_contract
from thermocline.errors import ContractError

# The first column of `problems` stands on line 8; with the usual columns the next part begins on
# line 15, and what a test gives as `rest` there.


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("- {name: a, logicalType: strin}",
         '8  a: unknown logicalType "strin"; did you mean "string"?'),
        ("- {name: a, logicalType: vector}",
         '8  a: unknown logicalType "vector"; one of string, boolean, date, time, integer, '
         "number, timestamp, array, object, map"),
        ("- {name: a}", "8  a: has no type; add physicalType or logicalType"),
        ("- {logicalType: string}", "8  schema: the column has no name"),
        ("- {name: 5, logicalType: string}",
         '8  name: must be text, not the number 5; put it in quotes: "5"'),
        ("- text", '8  properties[0]: must be a mapping, not "text"'),
        ("- {name: a, logicalType: string, required: maybe}",
         '8  a.required: must be true or false, not "maybe"'),
        ("- {name: a, logicalType: string, requird: true}",
         '8  a.requird: unknown key; did you mean "required"?'),
        ("- {name: a, logicalType: string, tags: x}", '8  a.tags: must be a list, not "x"'),
        ("- {name: a, logicalType: string, physicalName: b}",
         '8  a: physicalName differs from name; name the column "b" itself'),
        ("- {name: a, logicalType: number, semanticType: measure}",
         '8  a: semanticType "measure" is not a column of a table'),
        ("- {name: a, logicalType: array}", "8  a: array needs items"),
        ("- {name: a, logicalType: object}", "8  a: object needs properties"),
        ("- {name: a, logicalType: object, properties: []}",
         "8  a: an object needs at least one property"),
        ("- {name: a, logicalType: string, items: {logicalType: string}}",
         '8  a: items belong to logicalType array, not "string"'),
        ('- {name: a, physicalType: "struct<x: int>", properties: [{name: x, '
         "logicalType: string}]}",
         "8  a: physicalType is struct<x: int>, but the nested properties define "
         "struct<x: string>; remove physicalType"),
        ("- {name: a, logicalType: object, properties: [{name: x, logicalType: string}, "
         "{name: X, logicalType: string}]}", '8  a: property "X" is defined twice'),
        ("- {name: a, logicalType: object, properties: [{name: x, logicalType: string, "
         "partitioned: true}]}",
         "8  a.x: partitioned applies to columns, not to nested properties"),
        ("- {name: a, logicalType: object, properties: [{name: x, logicalType: string, "
         "logicalTypeOptions: {pattern: x}}]}",
         "8  a.x: pattern applies to columns, not to nested properties; write it as a rule of "
         "type: sql"),
        ("- {name: a, logicalType: map, map: {key: {logicalType: string}}}",
         "8  a: a map needs key and value"),
        ("- {name: a, logicalType: string, logicalTypeOptions: {maxLen: 3}}",
         '8  a: unknown option "maxLen"; did you mean "maxLength"?'),
        ("- {name: a, logicalType: array, items: {logicalType: string}, logicalTypeOptions: "
         "{minItems: 1}}", "8  a: minItems is not supported; write it as a rule of type: sql"),
        ("- {name: a, logicalType: string}\n- {name: A, logicalType: string}",
         "9  A: the column is defined twice; the other is a"),
        ("- {name: _pos, logicalType: integer}",
         "8  _pos: Iceberg reserves this name; use another name"),
        ("- {name: _rescued, logicalType: string}",
         "8  _rescued: Thermocline fills this column as map<string, string>; declare it as "
         "map<string, string>, or leave it out"),
        ("- {name: _valid_from, physicalType: timestamptz}",
         "8  _valid_from: Thermocline always fills this column; add required: true"),
        ("- {name: a, logicalType: string, primaryKey: true}",
         "8  a: a key column must be required; add required: true"),
        ("- {name: a, physicalType: double, primaryKey: true, required: true}",
         "8  a: double cannot be a key; use another type"),
        ("- {name: a, logicalType: string, primaryKeyPosition: 1}",
         "8  a: primaryKeyPosition without primaryKey: true"),
        ("- {name: a, logicalType: string, required: true, primaryKey: true, "
         "primaryKeyPosition: 1}\n- {name: b, logicalType: string, required: true, "
         "primaryKey: true, primaryKeyPosition: 1}",
         "9  b: primaryKeyPosition 1 is also that of a"),
    ],
)  # fmt: skip
def test_columns(problems, columns, expected):
    assert problems(columns + "\n") == [expected]


@pytest.mark.parametrize(
    "name",
    [
        "a'; DROP TABLE t--", 'a"b', "a`b", "a b", "a.b", "../b", "a/b", "a\\b", "1a", "", "a-b",
        "аmount", "ﬁle", "a\u202eb", "naïve", "*",
    ],
)  # fmt: skip
def test_names_that_could_mean_something_else_are_refused(problems, name):
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    (problem,) = problems(f'- {{name: "{escaped}", logicalType: string}}\n')
    assert "is not a valid name" in problem
    assert problem.startswith("8  ")
    assert "\u202e" not in problem


def test_a_name_has_at_most_255_characters(load, problems):
    assert load(f"- {{name: {'a' * 255}, logicalType: string}}\n").columns[0].name == "a" * 255
    (problem,) = problems(f"- {{name: {'a' * 10_000}, logicalType: string}}\n")
    assert problem.endswith("name of 10,000 characters; use at most 255")
    assert len(problem) < 200


@pytest.mark.parametrize(
    ("type_", "transform", "expected"),
    [
        ("string", "day", "day does not fit string; it fits date, timestamp, timestamptz"),
        ("date", "hour", "hour does not fit date; it fits timestamp, timestamptz"),
        ("double", "identity", "identity does not fit double; it fits binary, boolean, date, "
         "decimal, fixed, int, long, string, time, timestamp, timestamptz, uuid"),
        ("list<int>", "bucket[4]", "bucket does not fit list<int>; it fits binary, date, decimal, "
         "fixed, int, long, string, time, timestamp, timestamptz, uuid"),
        ("boolean", "truncate[4]",
         "truncate does not fit boolean; it fits binary, decimal, int, long, string"),
        ("string", "bucket", "bucket needs a number of at least 1; write bucket[16]"),
        ("string", "truncate[0]", "truncate needs a number of at least 1; write truncate[16]"),
        ("date", "day[3]", "day takes no number"),
        ("date", "dya", 'unknown transform "dya"; did you mean "day"?'),
        ("date", "void", 'unknown transform "void"; one of identity, year, month, day, hour, '
         "bucket, truncate"),
    ],
)  # fmt: skip
def test_transforms_must_fit_the_type(problems, type_, transform, expected):
    column = f"""\
        - name: a
          physicalType: "{type_}"
          partitioned: true
          customProperties:
            - {{property: transform, value: "{transform}"}}
        """
    (problem,) = problems(column)
    assert problem.split("  ", 1)[1] == f"a: {expected}"
    assert problem.split("  ")[0] in ("10", "11", "12")


def test_a_transform_needs_a_partitioned_column(problems):
    column = (
        "- {name: a, physicalType: date, customProperties: [{property: transform, value: day}]}"
    )
    assert problems(column + "\n") == ["8  a: transform without partitioned: true"]


def test_a_partitions_name_must_not_be_a_columns(problems):
    columns = """\
        - {name: at, physicalType: date, partitioned: true,
           customProperties: [{property: transform, value: day}]}
        - {name: at_day, logicalType: string}
        """
    assert problems(columns) == [
        "9  at: its partition field at_day has the name of a column; rename that column"
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("{property: write, value: mrege}",
         '16  write: unknown value "mrege"; did you mean "merge"?'),
        ("{property: updates, value: never}",
         '16  updates: unknown value "never"; one of copy-on-write, merge-on-read'),
        ("{property: order_by, value: day}",
         '16  customProperties: unknown setting "order_by"; did you mean "orderBy"?'),
        ("{property: transform, value: day}",
         "16  customProperties: transform is a setting of a column, not of a table"),
        ("{property: orderBy, value: updated}",
         '16  orderBy: there is no column "updated"; did you mean "updated_at"?'),
        ("{property: orderBy, value: tags}",
         "16  orderBy: tags is list<string>, which cannot be sorted"),
        ("{property: orderBy, value: 5}", "16  orderBy: must be a column or a list of columns"),
        ("{property: orderBy, value: [day, day]}", '16  orderBy: "day" is listed twice'),
        ("{property: sortBy, value: [day downwards]}",
         '16  sortBy: cannot parse "day downwards"; write column, column asc or column desc'),
        ("{property: sortBy, value: [dayy desc]}",
         '16  sortBy: there is no column "dayy"; did you mean "day"?'),
        ("{property: sortBy, value: [zorder(day, at)]}",
         '16  sortBy: cannot parse "zorder(day, at)"; write "zorder(column, column)", in quotes and'
         " alone"),
        ("{property: sortBy, value: ['zorder(day, at)', at]}",
         '16  sortBy: cannot parse "zorder(day, at), at"; write "zorder(column, column)", in quotes'
         " and alone"),
        ("{property: sortBy, value: zorder(day)}", "16  sortBy: a z-order has 2 to 4 columns"),
        ("{property: sortBy, value: 'zorder(day, )'}", "16  sortBy: a z-order has 2 to 4 columns"),
        ("{property: sortBy, value: 'zorder(a, b, c, d, e)'}",
         "16  sortBy: a z-order has 2 to 4 columns"),
        ("{property: sortBy, value: 'zorder(day, day)'}", '16  sortBy: "day" is listed twice'),
        ("{property: sortBy, value: 'zorder(day, dayy)'}",
         '16  sortBy: there is no column "dayy"; did you mean "day"?'),
        ("{property: sortBy, value: 'zorder(day, tags)'}",
         "16  sortBy: tags is list<string>, which cannot be sorted"),
        ("{property: deleteWhen, value: \"_op = 'd'\"}",
         "16  deleteWhen: has no effect with write: append"),
        ("{property: write, value: partitions}",
         "16  write: partitions needs a partitioned table; mark a column with partitioned: true"),
        ("{property: write, value: scd2}",
         "16  write: scd2 needs orderBy; set it to the timestamp from which a version is valid"),
        ("{property: hot, value: soon}",
         '16  hot: cannot parse "soon"; write a number and a unit, such as 7d; units are s, m, h, '
         "d, w, mo (30 days) or y (365 days)"),
        ("{property: history, value: [1]}",
         '16  history: cannot parse "[1]"; a duration must be a number with a unit'),
        ("{property: dropped, value: [day]}",
         "16  dropped: day is still among the columns; remove it from one of them"),
        ("{property: dropped, value: ['../x']}",
         '16  dropped: "" is not a valid name; use letters a-z, digits and underscores, not '
         "beginning with a digit"),
        ("{property: write, value: append}\n  - {property: write, value: merge}",
         "17  customProperties: write is set twice"),
        ("{value: merge}",
         "16  customProperties: the custom property has no name; write property: …"),
    ],
)  # fmt: skip
def test_settings(problems, settings, expected):
    assert problems(rest=f"customProperties:\n  - {settings}\n") == [expected]


def test_merge_and_scd2_need_a_key(problems):
    columns = "- {name: a, physicalType: timestamp}\n"
    for write in ("merge", "scd2"):
        rest = f"""\
            customProperties:
              - {{property: orderBy, value: a}}
              - {{property: write, value: {write}}}
            """
        assert problems(columns, rest=rest) == [
            f"11  write: {write} needs a key; mark key columns with primaryKey: true"
        ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("day", "17  orderBy: scd2 needs a timestamp first, and day is date; "),
        ("_valid_from", "17  orderBy: _valid_from is computed by scd2; "),
    ],
)
def test_scd2_orders_by_a_timestamp(problems, load, column, expected):
    rest = """\
        customProperties:
          - {property: write, value: scd2}
          - {property: orderBy, value: [%s, quantity]}
        """
    hint = "set it to the timestamp from which a version is valid"
    assert problems(rest=rest % column) == [expected + hint]
    assert load(rest=rest % "updated_at").order_by == ("updated_at", "quantity")


@pytest.mark.parametrize(
    ("renamed", "rest", "expected"),
    [
        ("status", "", 'renamedFrom "status" is still among the columns'),
        ("gone", "customProperties: [{property: dropped, value: gone}]\n",
         'renamedFrom "gone" is also dropped'),
        ("a b", "", "renamedFrom \"a b\" is not a valid column name"),
    ],
)  # fmt: skip
def test_renames(problems, renamed, rest, expected):
    columns = f"""\
        - {{name: status, logicalType: string}}
        - {{name: a, logicalType: string,
           customProperties: [{{property: renamedFrom, value: {renamed}}}]}}
        """
    hint = "; remove renamedFrom once the rename has been applied"
    assert problems(columns, rest=rest) == [f"10  a: {expected}{hint}"]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("slaProperties: [{property: latency, value: 5, unit: lightyears}]",
         '15  latency: cannot parse "5"; unknown unit "lightyears"; units are s, m, h, d, w, '
         "mo (30 days) or y (365 days)"),
        ("slaProperties: [{property: retenton, value: 5, unit: d}]",
         '15  slaProperties: unknown property "retenton"; did you mean "retention"?'),
        ("slaProperties: [{property: retention, value: 0, unit: d}]",
         '15  retention: cannot parse "0"; a duration must be more than 0 and at most '
         "1,000 years"),
        ("slaProperties: [{property: latency, value: 5m}, {property: freshness, value: 5m}]",
         "15  freshness: freshness is defined twice"),
        ("slaProperties: [{property: freshness, value: 5m, element: status}]",
         "15  freshness: freshness needs a date or timestamp, and status is string"),
        ("slaProperties: [{property: freshness, value: 5m, element: orders.dya}]",
         '15  freshness: there is no column "dya"; did you mean "day"?'),
        ("status: [draft]", "15  status: must be text, not a list"),
        ("owner: me", "15  owner: unknown key"),
    ],
)  # fmt: skip
def test_the_rest_of_the_file(problems, rest, expected):
    assert problems(rest=rest + "\n") == [expected]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("v3.1.0", "v2.2.0", '1  apiVersion: "v2.2.0" is not version 3; write apiVersion: v3.1.0'),
        ("kind: DataContract", "kind: Pod", '2  kind: "Pod" is not a contract; write DataContract'),
        ("id: shop.silver.orders\n", "", "1  id: is missing; the standard requires it"),
        ("1.2.0", "1.2", '4  version: must be text, not the number 1.2; put it in quotes: "1.2"'),
        ("- name: orders", "- name: ordres",
         '6  schema: the table is "ordres" but the file is "orders.odcs.yaml"; '
         "name the file ordres.odcs.yaml"),
    ],
)  # fmt: skip
def test_the_head_of_the_file(write, old, new, expected):
    text = (
        "apiVersion: v3.1.0\nkind: DataContract\nid: shop.silver.orders\nversion: 1.2.0\n"
        "schema:\n  - name: orders\n    properties: [{name: a, logicalType: string}]\n"
    )
    with pytest.raises(ContractError) as caught:
        load_contract(write(text.replace(old, new)))
    assert str(caught.value).splitlines() == [
        f"contracts/silver/orders.odcs.yaml:{expected}",
        "  Fix this problem in the contract. Nothing was written.",
    ]


@pytest.mark.parametrize("text", ["[]", "text", "---\n", "5"])
def test_a_file_that_is_no_mapping(write, text):
    with pytest.raises(ContractError) as caught:
        load_contract(write(text))
    assert [p.what for p in caught.value.problems] == [
        "a contract is a mapping of apiVersion, kind, id, version, schema"
    ]


def test_layers_have_names_too(write):
    text = (
        "apiVersion: v3.1.0\nkind: DataContract\nid: a\nversion: 1.0.0\n"
        "schema: [{name: orders, properties: [{name: a, logicalType: string}]}]\n"
    )
    with pytest.raises(ContractError) as caught:
        load_contract(write(text, "sil ver/orders"))
    assert [problem.what for problem in caught.value.problems] == ['"sil ver" is not a valid name']


def test_one_wrong_value_does_not_hide_the_others(problems):
    columns = """\
        - {name: a, logicalType: string, required: maybe, primaryKey: 7}
        - {name: "b'", logicalType: string}
        - 5
        - {name: c, physicalType: "decimal(50,2)", partitioned: true, requird: true}
        """
    quality = "- {metric: rowCount, mustBeBetween: [1]}\n"
    rest = "tags: [1, x]\ncustomProperties: [{property: write, value: mrege}]\n"
    assert [problem.split(";")[0] for problem in problems(columns, quality=quality, rest=rest)] == [
        "8  a.primaryKey: must be true or false, not the number 7",
        '8  a.required: must be true or false, not "maybe"',
        "9  b': \"b'\" is not a valid name",
        "10  properties[2]: must be a mapping, not the number 5",
        "11  c.requird: unknown key",
        '11  c: unknown type "decimal(50,2)"',
        "13  mustBeBetween: must be exactly two numbers, not a list",
        "14  tags[0]: must be text, not the number 1",
        '15  write: unknown value "mrege"',
    ]
