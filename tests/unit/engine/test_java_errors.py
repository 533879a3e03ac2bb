"""Texts of errors from Java: the line that says something."""

from __future__ import annotations

from thermocline.errors import first_line


def test_the_text_of_a_java_error_is_java_s_own() -> None:
    text = (
        "An error occurred while calling o422.overwrite.\n"
        ": org.apache.spark.SparkException: [PLAN_VALIDATION_FAILED] A rule made an invalid plan.\n"
        "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.of(QueryExecutionErrors.scala:1)\n"
    )
    assert first_line(RuntimeError(text)) == (
        "org.apache.spark.SparkException: [PLAN_VALIDATION_FAILED] A rule made an invalid plan."
    )


def test_other_texts_are_left_as_they_are() -> None:
    assert first_line(RuntimeError("\n  : no table\nmore")) == ": no table"
    assert first_line(RuntimeError("An error occurred while calling o1.x.")) == "RuntimeError"
    assert first_line(KeyError()) == "KeyError"
