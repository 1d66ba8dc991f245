"""Loops that run for as long as a process does survive any exception: one odd message must not end them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nearcast

SOURCE = Path(nearcast.__file__).parent
PARTS = ("client", "cluster", "coordinator", "nats", "site", "web")
PAUSES = ("sleep", "_sleep", "wait")
# Why a loop needs no guard of its own.
EXCEPTIONS = {
    "client/history.py pages": "it is its caller's, who gets the exception",
    "client/cursor.py run": "nothing of it comes from the network; an error of the disk is tried again",
    "client/spooling.py _sync": "the same",
    "coordinator/leadership.py _lead_whenever_elected": "what fails in a term is logged with the task's result",
    "coordinator/leadership.py run": "what it awaits guards itself; a store that is away at the start ends it",
    "site/worker/mark_log.py run": "publish guards itself: what it could not mark must be given back",
    "site/worker/processor_process.py run": "processors that cannot be loaded end their worker, which is started again",
    "web/login_sessions.py run": "nothing of it comes from the network",
}


def own_nodes(loop: ast.While) -> Iterator[ast.AST]:
    """Without those of loops and functions within it."""
    waiting: list[ast.AST] = [*loop.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.While | ast.For | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def is_endless(loop: ast.While) -> bool:
    """Whether it pauses, and nothing but an exception ends it."""
    named = {getattr(node.func, "attr", "") for node in ast.walk(loop) if isinstance(node, ast.Call)}
    ends = any(isinstance(node, ast.Break | ast.Return) for node in own_nodes(loop))
    forever = isinstance(loop.test, ast.Constant) and loop.test.value is True
    return forever and not ends and bool(named.intersection(PAUSES))


def is_guarded(loop: ast.While) -> bool:
    handlers = [node for node in ast.walk(loop) if isinstance(node, ast.ExceptHandler)]
    return any(isinstance(one.type, ast.Name) and one.type.id == "Exception" for one in handlers)


def endless_loops() -> dict[str, bool]:
    """Of the processes of a deployment: where they are, and whether they survive."""
    found: dict[str, bool] = {}
    for file in sorted(file for part in PARTS for file in (SOURCE / part).rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.AsyncFunctionDef):
                for loop in (node for node in ast.walk(function) if isinstance(node, ast.While) and is_endless(node)):
                    found[f"{file.relative_to(SOURCE)} {function.name}"] = is_guarded(loop)
    return found


def test_every_endless_loop_survives_any_exception() -> None:
    found = endless_loops()
    assert len(found) > 25
    assert {where for where, guarded in found.items() if not guarded} == set(EXCEPTIONS)
