"""Quality rules: what is read, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from thermocline.contract import Rule

ZERO = (("mustBe", 0),)


@pytest.mark.parametrize(
    ("quality", "rule"),
    [
        ("{metric: nullValues, arguments: {properties: [status]}}", Rule("missing", ("status",))),
        ("{metric: missingValues, arguments: {property: status, missingValues: [null, '', N/A]}, "
         "mustBeLessThan: 5, unit: percent}",
         Rule("missing", ("status",), (("values", ("", "N/A")),), (("mustBeLessThan", 5),),
              "percent")),
        ("{metric: missingValues, arguments: {property: day, missingValues: [null]}, mustBe: 0}",
         Rule("missing", ("day",))),
        ("{metric: duplicateValues, arguments: {properties: [order_id, day]}, name: one a day}",
         Rule("duplicates", ("order_id", "day"), name="one a day")),
        ("{rule: duplicateCount, arguments: {properties: [order_id]}, mustBe: 0}",
         Rule("duplicates", ("order_id",))),
        ("{metric: rowCount, mustBeBetween: [10, 20], severity: warning}",
         Rule("row_count", bounds=(("mustBeBetween", (10, 20)),), severity="warning")),
        ("{type: library, metric: rowCount, mustBeGreaterThan: 1, mustBeLessOrEqualTo: 9}",
         Rule("row_count", bounds=(("mustBeGreaterThan", 1), ("mustBeLessOrEqualTo", 9)))),
        ("{metric: invalidValues, arguments: {property: status, validValues: [NO, yes]}}",
         Rule("accepted", ("status",), (("values", ("NO", "yes")),))),
        ("{metric: invalidValues, arguments: {property: status, pattern: '^[a-z]+$'}}",
         Rule("pattern", ("status",), (("pattern", "^[a-z]+$"),))),
        ("{metric: invalidValues, arguments: {property: quantity, min: 1, max: 9}}",
         Rule("range", ("quantity",), (("min", 1), ("max", 9)))),
        ("{metric: invalidValues, arguments: {property: net_amount, exclusiveMinimum: 0.5}}",
         Rule("range", ("net_amount",), (("exclusive_min", 0.5),))),
        ("{metric: invalidValues, arguments: {property: day, minimum: 2026-01-01}}",
         Rule("range", ("day",), (("min", "2026-01-01"),))),
        ("{metric: invalidValues, arguments: {property: status, maxLength: 9}}",
         Rule("length", ("status",), (("max", 9),))),
        ("{metric: invalidValues, arguments: {property: status, reference: gold.states.code}}",
         Rule("reference", ("status",), (("table", "gold.states"), ("columns", ("code",))))),
        ("{metric: freshness, arguments: {property: updated_at, within: 2h}}",
         Rule("freshness", ("updated_at",), (("within", timedelta(hours=2)),))),
        ("{metric: freshness, arguments: {property: day}, mustBeLessThan: 2, unit: days}",
         Rule("freshness", ("day",), (("within", timedelta(days=2)),))),
        ("{type: sql, query: 'select count(*) from ${table} where \"{}\" = 1', mustNotBe: 3}",
         Rule("sql", (), (("query", 'select count(*) from {object} where "{}" = 1'),),
              (("mustNotBe", 3),))),
    ],
)  # fmt: skip
def test_a_tables_rules(load, quality, rule):
    (found,) = load(quality=f"- {quality}\n").rules
    assert found == rule
    assert found.line == 16


def test_what_a_column_demands_of_its_values(load):
    contract = load("""\
        - name: code
          logicalType: string
          unique: true
          enum: [{value: a}, {value: b}]
          logicalTypeOptions: {minLength: 2, maxLength: 5, pattern: "^[a-z]"}
          relationships: [{to: states.code}]
          quality:
            - {metric: nullValues, mustBe: 0}
            - type: sql
              query: select count(*) from {object} where {property} like 'x%'
              mustBeLessThan: 3
              severity: warning
        - {name: n, logicalType: integer, logicalTypeOptions: {minimum: 1, exclusiveMaximum: 9}}
        """)
    assert contract.rules == (
        Rule("duplicates", ("code",)),
        Rule("accepted", ("code",), (("values", ("a", "b")),)),
        Rule("length", ("code",), (("min", 2), ("max", 5))),
        Rule("pattern", ("code",), (("pattern", "^[a-z]"),)),
        Rule("reference", ("code",), (("table", "silver.states"), ("columns", ("code",)))),
        Rule("missing", ("code",)),
        Rule("sql", ("code",), (("query", "select count(*) from {object} where code like 'x%'"),),
             (("mustBeLessThan", 3),), severity="warning"),
        Rule("range", ("n",), (("min", 1), ("exclusive_max", 9))),
    )  # fmt: skip
    assert [rule.line for rule in contract.rules] == [10, 11, 12, 12, 13, 15, 16, 20]


def test_a_rule_of_several_columns_is_one_rule_each_where_each_counts_alone(load):
    quality = """\
        - {metric: nullValues, name: filled, arguments: {properties: [status, day]},
           mustBeLessThan: 1, unit: "%"}
        """
    bounds = (("mustBeLessThan", 1),)
    assert load(quality=quality).rules == (
        Rule("missing", ("status",), (), bounds, "percent", name="filled (status)"),
        Rule("missing", ("day",), (), bounds, "percent", name="filled (day)"),
    )


def test_a_composite_foreign_key(load):
    schema = """\
        relationships:
          - {type: foreignKey, from: [orders.order_id, day], to: [gold.x.id, gold.x.day]}
        """
    arguments = (("table", "gold.x"), ("columns", ("id", "day")))
    assert load(schema=schema).rules == (Rule("reference", ("order_id", "day"), arguments),)


def test_rules_for_people_and_other_tools_are_left_to_them(load):
    quality = """\
        - {type: text, description: it should look right}
        - {type: custom, engine: soda, implementation: "checks: row_count > 0"}
        """
    assert load(quality=quality).rules == ()


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        ("{metric: duplicateValue, mustBe: 0}",
         'quality[0]: unknown metric "duplicateValue"; did you mean "duplicateValues"?'),
        ("{mustBe: 0}",
         "quality[0]: the rule has no metric; one of nullValues, missingValues, "
         "duplicateValues, rowCount, invalidValues, freshness"),
        ("{type: sqll, query: x}", 'quality[0]: unknown type "sqll"; did you mean "sql"?'),
        ("{metric: duplicateValues}",
         "quality[0]: the rule names no column; name the columns as arguments: "
         "{properties: [a, b]}"),
        ("{metric: nullValues, arguments: {properties: [statsu]}}",
         'missing: there is no column "statsu"; did you mean "status"?'),
        ("{metric: nullValues, arguments: {propertys: [status]}}",
         'quality[0]: unknown argument "propertys"; did you mean "property"?'),
        ("{metric: rowCount}",
         "quality[0]: the rule has no bound; add mustBe…"),
        ("{metric: rowCount, mustbe: 3}", 'mustbe: unknown key; did you mean "mustBe"?'),
        ("{metric: rowCount, mustBe: many}",
         'quality[0]: mustBe needs a number, not "many"'),
        ("{metric: rowCount, mustBeLessThan: 1e999}",
         "quality[0]: mustBeLessThan needs a finite number"),
        ("{metric: rowCount, mustBeBetween: [5, 1]}",
         "quality[0]: mustBeBetween has the larger number first"),
        ("{metric: rowCount, mustBe: 5, unit: percent}",
         "quality[0]: rowCount cannot be a percentage"),
        ("{metric: nullValues, arguments: {property: day}, mustBeLessThan: 120, unit: percent}",
         "quality[0]: mustBeLessThan of 120 percent is outside 0 to 100"),
        ("{metric: nullValues, arguments: {property: day}, unit: furlongs}",
         'quality[0]: unit "furlongs" is neither rows nor percent'),
        ("{metric: rowCount, mustBe: 5, severity: fatal}",
         'quality[0]: severity "fatal" is neither error nor warning'),
        ("{metric: invalidValues, arguments: {property: status}}",
         "quality[0]: invalidValues has no condition; add validValues, pattern, min, max, "
         "minLength, maxLength or reference"),
        ("{metric: invalidValues, arguments: {property: status, pattern: a, maxLength: 3}}",
         "quality[0]: the rule has more than one condition; write each condition as a separate "
         "rule"),
        ("{metric: invalidValues, arguments: {property: status, validValues: [1]}}",
         "status: 1 is not text; put it in quotes"),
        ("{metric: invalidValues, arguments: {property: quantity, validValues: [1, 3000000000]}}",
         "quantity: 3000000000 does not fit into int"),
        ("{metric: invalidValues, arguments: {property: status, validValues: x}}",
         "status: validValues must be a list of values"),
        ("{metric: invalidValues, arguments: {property: quantity, min: a lot}}",
         'quantity: "a lot" is not a whole number'),
        ("{metric: invalidValues, arguments: {property: net_amount, min: a lot}}",
         'net_amount: "a lot" is not a number'),
        ("{metric: invalidValues, arguments: {property: quantity, min: 5, max: 1}}",
         "quantity: no value is between 5 and 1"),
        ("{metric: invalidValues, arguments: {property: day, min: 1.1.2026}}",
         'day: "1.1.2026" is not a date in ISO form'),
        ("{metric: invalidValues, arguments: {property: status, min: 5}}",
         "status: a range needs numbers, dates or times, not string"),
        ("{metric: invalidValues, arguments: {property: day, pattern: x}}",
         "day: pattern needs a text column, not date"),
        ("{metric: invalidValues, arguments: {property: status, pattern: '(a'}}",
         'status: pattern "(a": missing ), unterminated subpattern at position 0'),
        (r"{metric: invalidValues, arguments: {property: status, pattern: '(a)\1'}}",
         r'status: pattern "(a)\1": look-around and back-references do not work in every engine'),
        ("{metric: invalidValues, arguments: {property: status, reference: customers}}",
         'status: "customers" is not a reference; write layer.table.column or table.column'),
        ("{metric: invalidValues, arguments: {property: status, reference: \"a.b'.c\"}}",
         "status: \"a.b'.c\" is not a reference; write layer.table.column or table.column"),
        ("{metric: duplicateValues, arguments: {properties: [tags]}}",
         "tags: a rule of kind duplicates needs a column that is not nested, not list<string>"),
        ("{metric: freshness, arguments: {property: status, within: 2h}}",
         "status: freshness needs a date or timestamp, not string"),
        ("{metric: freshness, arguments: {property: day}}",
         "quality[0]: freshness has no maximum age; add arguments: {within: 2h}"),
        ("{type: sql, query: delete from {object}, mustBe: 0}",
         "quality[0]: a rule of type sql needs a query that selects a number"),
        ("{type: sql, query: 'select count(*) from orders', mustBe: 0}",
         "quality[0]: the query does not read this table; write {object} instead of the "
         "table's name"),
        ("{type: sql, query: 'select {property} from {object}', mustBe: 0}",
         "quality[0]: {property} is allowed only in a column's rule"),
        ("{type: sql, query: 'select 1 from {object}'}",
         "quality[0]: the rule has no bound; add mustBe…"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_rule(problems, quality, expected):
    if "delete from" in quality:
        quality = quality.replace("delete from {object}", "'delete from {object}'")
    found = problems(quality=f"- {quality}\n")
    assert found[0] == f"16  {expected}"


def test_both_sides_of_a_foreign_key_have_as_many_columns(problems):
    schema = "relationships: [{from: [order_id, day], to: gold.x.id}]\n"
    assert problems(schema=schema) == [
        "15  order_id: refers from 2 columns to 1 of 1 tables; "
        "both sides need the same number of columns"
    ]


def test_rules_that_a_single_row_can_break():
    kinds = ("missing", "accepted", "range", "length", "pattern", "duplicates", "row_count", "sql")
    assert [kind for kind in kinds if Rule(kind).is_row_level] == [
        "missing", "accepted", "range", "length", "pattern",
    ]  # fmt: skip
