"""Patterns of LIKE and regular expressions: Java's engine backtracks, and a task that does is not ended by any limit.

`(a+)+b` takes 2 to the power of the text's length. Each `%` of LIKE is a `.*`: with ten of them, a text of a thousand
letters takes years. So patterns are written in the query, or are a parameter (of LIKE) whose values are checked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot import exp

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_like_values", "check_patterns", "like_parameters"]

_MOST_WILDCARDS = 2  # of LIKE, behind which more follows; at the end of a pattern one costs nothing
_MOST_QUANTIFIERS = 3
_LONGEST_PATTERN = 500
_LIKE = (exp.Like, exp.ILike)
_REGULAR = (
    exp.RegexpLike, exp.RegexpILike, exp.RegexpExtract, exp.RegexpExtractAll, exp.RegexpReplace, exp.RegexpSplit,
    exp.RegexpCount, exp.RegexpInstr, exp.Split,
)  # fmt: skip
_REGULAR_NAMES = (
    "regexp", "regexp_like", "regexp_count", "regexp_instr", "regexp_substr", "regexp_extract_all", "str_to_map",
)  # fmt: skip
_QUANTIFIER = re.compile(r"[*+]|\{(\d*),(\d*)\}|\{(\d+)\}")
_FEW = 10  # repetitions that are not counted as a quantifier


def check_patterns(tree: exp.Expr) -> None:
    """PolicyError for a pattern that may take forever, or is not known."""
    for node in tree.walk():
        if isinstance(node, _LIKE):
            for pattern in _alternatives(node.expression):
                _check_like(pattern)
        elif isinstance(node, _REGULAR):
            _check_regular(node.args.get("expression"), node)
        elif isinstance(node, exp.StrToMap):
            for name in ("pair_delim", "key_value_delim"):
                if node.args.get(name) is not None:
                    _check_regular(node.args[name], node)
        elif isinstance(node, exp.Anonymous) and node.name.lower() in _REGULAR_NAMES:
            for part in node.expressions[1:3] if node.name.lower() == "str_to_map" else node.expressions[1:2]:
                _check_regular(part, node)


def like_parameters(tree: exp.Expr) -> dict[str, bool]:
    """The parameters in patterns of LIKE, and whether one is always the whole pattern."""
    found: dict[str, bool] = {}
    for node in tree.find_all(*_LIKE):
        for pattern in _alternatives(node.expression):
            for parameter in pattern.find_all(exp.Placeholder):
                found[parameter.name] = found.get(parameter.name, True) and parameter is pattern
    return found


def check_like_values(parameters: Mapping[str, bool], values: Mapping[str, object]) -> None:
    """InputError for a value that would make a pattern of LIKE too expensive."""
    for name, whole in parameters.items():
        value = values.get(name)
        if not isinstance(value, str):
            continue
        if whole and _wildcards(value) > _MOST_WILDCARDS:
            raise InputError(f"parameter {name} is {value[:100]!r}: {_RULE}")
        if not whole and "%" in value:
            raise InputError(f"parameter {name} is {value[:100]!r}: as a part of a pattern of LIKE it may have no %")


_RULE = f"a pattern of LIKE may have at most {_MOST_WILDCARDS} %, and one at its end"


def _alternatives(node: exp.Expr) -> Iterable[exp.Expr]:
    """The patterns of LIKE, LIKE ANY and LIKE ALL."""
    while isinstance(node, exp.Any | exp.All | exp.Paren):
        node = node.this
    return node.expressions if isinstance(node, exp.Tuple) else [node]


def _check_like(pattern: exp.Expr) -> None:
    if any(pattern.find_all(exp.Column, exp.Query)):
        raise PolicyError("a pattern of LIKE is a text in the query or a parameter, no column", pattern)
    texts = [one.name for one in pattern.find_all(exp.Literal) if one.is_string]
    if sum(map(_wildcards, texts)) > _MOST_WILDCARDS or any(map(_REPEATS.__contains__, _function_names(pattern))):
        raise PolicyError(_RULE, pattern)


_REPEATS = ("Repeat", "Pad", "Replace", "RegexpReplace", "Translate", "Reverse")


def _function_names(node: exp.Expr) -> list[str]:
    return [type(one).__name__ for one in node.walk()]


def _wildcards(pattern: str) -> int:
    """Those behind which more than wildcards follows."""
    return re.sub("%+", "%", pattern.rstrip("%")).count("%")


def _check_regular(pattern: exp.Expr | None, node: exp.Expr) -> None:
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise PolicyError("a regular expression must be a text in the query", pattern or node)
    text = pattern.name
    if len(text) > _LONGEST_PATTERN:
        raise PolicyError(f"a regular expression has at most {_LONGEST_PATTERN} characters", pattern)
    if re.search(r"\\[1-9]|\\k|\(\?[=!<>]", text):
        raise PolicyError("a regular expression may not look back or ahead, nor refer to a group", pattern)
    if _nested_or_many(text):
        raise PolicyError(
            f"a regular expression has at most {_MOST_QUANTIFIERS} quantifiers (* + {{n,}}), and none of a group that "
            "has alternatives or a quantifier",
            pattern,
        )


def _nested_or_many(text: str) -> bool:
    """Reads a pattern once: which group a quantifier is of, and what that group contains."""
    quantifiers, at = 0, 0
    open_groups: list[bool] = []  # whether each has a quantifier or alternatives
    complex_before = False  # whether what the next quantifier is of does
    while at < len(text):
        letter = text[at]
        found = _QUANTIFIER.match(text, at)
        if letter == "\\":
            at, complex_before = at + 2, False
        elif letter == "[":
            at, complex_before = _end_of_class(text, at), False
        elif letter == "(":
            open_groups.append(False)
            at, complex_before = at + 1, False
        elif letter == ")":
            complex_before = open_groups.pop() if open_groups else True
            if open_groups and complex_before:
                open_groups[-1] = True
            at += 1
        elif found and _repeats_much(found):
            quantifiers += 1
            if complex_before:
                return True
            if open_groups:
                open_groups[-1] = True
            at, complex_before = found.end(), False
        else:
            if letter in "|?" and open_groups:
                open_groups[-1] = True
            if letter == "?" and complex_before:  # `(a*)?` is no more than `(a*)`
                complex_before = False
            at = found.end() if found else at + 1
            complex_before = complex_before and bool(found)
    return quantifiers > _MOST_QUANTIFIERS


def _repeats_much(found: re.Match[str]) -> bool:
    if found[0] in "*+":
        return True
    most = found[3] or found[2]
    return not most or len(most) > 4 or int(most) > _FEW


def _end_of_class(text: str, at: int) -> int:
    """Behind the `]` of a class of characters."""
    at += 1
    while at < len(text) and text[at] != "]":
        at += 2 if text[at] == "\\" else 1
    return at + 1
