"""A channel's query as tokens: finds its parameters, tables and predicates. Spark does the parsing.

A block is a SELECT: the query itself is block 0, each SELECT in parentheses is another one inside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Predicate", "TableRef", "Token", "predicates", "split_arguments", "tables", "tokenize"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<name>`[^`]+`|[A-Za-z_]\w*)
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[DLFdlf]?)
      | (?P<parameter>:[A-Za-z_]\w*)
      | (?P<sign><=>|<=|>=|<>|!=|==|::|\|\||->|.)""",
    re.VERBOSE | re.DOTALL,
)
_JOIN_WORDS = {"JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "ANTI", "SEMI"}
_CLAUSES = {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "WINDOW", "QUALIFY"}
_NOT_AN_ALIAS = _JOIN_WORDS | _CLAUSES | {"ON", "USING", "LATERAL", "TABLESAMPLE", "PIVOT", "UNPIVOT", "SELECT"}


@dataclass(frozen=True)
class Token:
    """A token; `start` is its offset. depth: parentheses around it. block: the SELECT that it belongs to."""

    kind: str
    text: str
    start: int
    depth: int
    block: int

    @property
    def word(self) -> str:
        """In upper case, to compare with keywords."""
        return self.text.upper() if self.kind == "name" else self.text

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class TableRef:
    """A table in a FROM clause: a dataset, or a SELECT in parentheses, which has no name. `start` and `end` are without
    the alias. outer: it is the optional side of a LEFT JOIN."""

    name: str
    alias: str
    start: int
    end: int
    block: int
    outer: bool


@dataclass(frozen=True)
class Predicate:
    """A condition that its clause joins with AND. outer: the alias whose LEFT JOIN it belongs to."""

    tokens: tuple[Token, ...]
    outer: str

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end


def tokenize(text: str) -> list[Token]:
    """The tokens without spaces and comments."""
    found: list[Token] = []
    stack: list[int] = [0]
    blocks = 0
    raw = [m for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
    for n, match in enumerate(raw):
        kind, piece = str(match.lastgroup), match.group()
        if piece == ")" and len(stack) > 1:
            stack.pop()
        found.append(Token(kind, piece, match.start(), len(stack) - 1, stack[-1]))
        if piece == "(":
            following = raw[n + 1].group().upper() if n + 1 < len(raw) else ""
            if following in ("SELECT", "WITH"):
                blocks += 1
                stack.append(blocks)
            else:
                stack.append(stack[-1])
    return found


def tables(tokens: Sequence[Token]) -> list[TableRef]:
    """The tables named in FROM and JOIN, in the order of the text."""
    found: list[TableRef] = []
    from_depth: dict[int, int] = {}
    for n, token in enumerate(tokens):
        word = token.word
        before = tokens[n - 1].word if n else ""
        if word in _CLAUSES and from_depth.get(token.block) == token.depth:
            del from_depth[token.block]
        inside = from_depth.get(token.block) == token.depth
        if word == "FROM" and before != "DISTINCT" and _at_block_level(tokens, n):
            from_depth[token.block] = token.depth
        elif not (inside and (word == "JOIN" or word == ",")):
            continue
        outer = word == "JOIN" and _joined_by(tokens, n) in ("LEFT", "ANTI", "SEMI")
        table = _table(tokens, n + 1, outer)
        if table is not None:
            found.append(table)
    return found


def predicates(tokens: Sequence[Token]) -> list[Predicate]:
    """The conditions of every WHERE and ON that are joined with AND. One that contains OR is one predicate."""
    found: list[Predicate] = []
    for n, token in enumerate(tokens):
        if token.word not in ("WHERE", "ON"):
            continue
        outer = ""
        if token.word == "ON":
            kind, alias = _join_before(tokens, n)
            if kind in ("RIGHT", "FULL"):
                continue
            outer = alias if kind in ("LEFT", "ANTI", "SEMI") else ""
        found.extend(Predicate(part, outer) for part in _conjuncts(_clause(tokens, n)))
    return found


def split_arguments(tokens: Sequence[Token]) -> list[tuple[Token, ...]]:
    """The arguments of a call, given the tokens from its opening to its closing parenthesis."""
    parts: list[list[Token]] = [[]]
    inner = tokens[0].depth + 1
    for token in tokens[1:-1]:
        if token.text == "," and token.depth == inner:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts]


def _at_block_level(tokens: Sequence[Token], n: int) -> bool:
    """Whether this FROM is a clause and not part of a call such as extract(year FROM t)."""
    token = tokens[n]
    for other in reversed(tokens[:n]):
        if other.block == token.block and other.word == "SELECT":
            return other.depth == token.depth
    return False


def _table(tokens: Sequence[Token], n: int, outer: bool) -> TableRef | None:
    if n >= len(tokens) or tokens[n].word in ("LATERAL", "VALUES"):
        return None
    first = last = tokens[n]
    after = n + 1
    if first.text == "(":
        after = next((i for i in range(n + 1, len(tokens)) if tokens[i].depth == first.depth), len(tokens))
        if after >= len(tokens) or tokens[n + 1].word != "SELECT":
            return None
        last = tokens[after]
        after += 1
    elif first.kind != "name" or (after < len(tokens) and tokens[after].text in (".", "(")):
        return None  # a qualified name, or a function: Spark reports it as unknown
    name = first.text.strip("`").lower() if first.kind == "name" else ""
    if after < len(tokens) and tokens[after].word == "AS":
        after += 1
    alias = name
    if after < len(tokens) and tokens[after].kind == "name" and tokens[after].word not in _NOT_AN_ALIAS:
        alias = tokens[after].text.strip("`").lower()
    return TableRef(name, alias, first.start, last.end, first.block, outer)


def _joined_by(tokens: Sequence[Token], join: int) -> str:
    """The first word of `LEFT OUTER JOIN` and the like; INNER for a plain one."""
    n = join - 1
    words = []
    while n >= 0 and tokens[n].word in _JOIN_WORDS | {"OUTER"}:
        words.append(tokens[n].word)
        n -= 1
    return next((word for word in ("ANTI", "SEMI", "LEFT", "RIGHT", "FULL") if word in words), "INNER")


def _join_before(tokens: Sequence[Token], on: int) -> tuple[str, str]:
    depth, block = tokens[on].depth, tokens[on].block
    for n in range(on - 1, -1, -1):
        if tokens[n].word == "JOIN" and tokens[n].depth == depth and tokens[n].block == block:
            table = _table(tokens, n + 1, False)
            return _joined_by(tokens, n), table.alias if table else ""
    return "INNER", ""


def _clause(tokens: Sequence[Token], keyword: int) -> list[Token]:
    depth = tokens[keyword].depth
    found = []
    for token in tokens[keyword + 1 :]:
        if token.depth < depth or (
            token.depth == depth and (token.word in _CLAUSES | _JOIN_WORDS or token.text == ",")
        ):
            break
        found.append(token)
    return found


def _conjuncts(clause: list[Token]) -> list[tuple[Token, ...]]:
    if not clause:
        return []
    depth = clause[0].depth
    words = [token.word for token in clause if token.depth == depth]
    if "OR" in words or "CASE" in words:
        return [tuple(clause)]
    parts: list[list[Token]] = [[]]
    between = False
    for token in clause:
        if token.depth == depth and token.word == "BETWEEN":
            between = True
        if token.depth == depth and token.word == "AND" and not between:
            parts.append([])
            continue
        if token.depth == depth and token.word == "AND":
            between = False
        parts[-1].append(token)
    return [tuple(part) for part in parts if part]
