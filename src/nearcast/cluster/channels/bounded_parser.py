"""sqlglot's parser with a limit on its steps.

It goes back to try another reading, and does so within what it tries: of `int(int(int(1)))` each further level takes
two or three times as long. Twenty of them, some hundred characters, would not end, in the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot.dialects import Spark

from nearcast.cluster.channels.query_policy import PolicyError

if TYPE_CHECKING:
    from sqlglot import Token, exp

__all__ = ["parse_statements"]

_STEPS_OF_A_TOKEN, _STEPS_AT_LEAST = 20, 5_000  # usual queries take 1 to 1.3 of a token


class _BoundedParser(Spark.Parser):  # type: ignore[misc]  # it has no type
    """Raises PolicyError when it reads tokens again and again."""

    steps_left = 0

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise PolicyError("the query is too complex to be read; nest its expressions less deeply")
        super()._advance(times)


def parse_statements(dialect: Spark, tokens: list[Token], text: str) -> list[exp.Expr]:
    """The trees of a text. SqlglotError when it cannot be parsed, PolicyError when that would take too long."""
    parser = _BoundedParser(dialect=dialect)
    parser.steps_left = _STEPS_AT_LEAST + _STEPS_OF_A_TOKEN * len(tokens)
    return [tree for tree in parser.parse(tokens, text) if tree is not None]
