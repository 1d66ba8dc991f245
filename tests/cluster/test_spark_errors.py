"""What users see of Spark's errors: one line, and nothing that they cannot do."""

from __future__ import annotations

import pytest

from nearcast.cluster.spark_errors import error_line, failure_reason


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. "
            'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n== SQL ==',
            "Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead.",
        ),
        (
            "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] 123.45 cannot be represented as Decimal(3, 1). If necessary "
            'set "spark.sql.ansi.enabled" to "false" to bypass this error, and return NULL instead. SQLSTATE: 22003',
            "123.45 cannot be represented as Decimal(3, 1).",
        ),
        (
            "[INCONSISTENT] Fail to parse 1.1. in the new parser. You can set "
            '"spark.sql.legacy.timeParserPolicy" to "LEGACY" to restore the behavior before Spark 3.0, or set to '
            '"CORRECTED" and treat it as an invalid datetime string. SQLSTATE: 42K0B',
            "Fail to parse 1.1. in the new parser.",
        ),
        ("[NO_COLUMN] There is no `spark.sql.x`. Did you mean `x`?", "There is no `spark.sql.x`. Did you mean `x`?"),
        ("Set spark.sql.ansi.enabled to false.", "Set spark.sql.ansi.enabled to false."),
    ],
)
def test_an_error_is_one_line_without_settings_that_users_cannot_change(text: str, line: str) -> None:
    assert error_line(ValueError(text)) == line
    assert failure_reason(ValueError(text)) == line
