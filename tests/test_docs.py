"""What the documentation names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nearcast.auth.role_table import role_table

ROOT = Path(__file__).parent.parent
PLACES = sorted(set(re.findall(r"`([a-z_/]+\.py):([A-Za-z_.]+)`", (ROOT / "docs/architecture.md").read_text())))


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[":".join(place) for place in PLACES])
def test_places_of_the_architecture_exist(file: str, name: str) -> None:
    body = ast.parse((ROOT / "src/nearcast" / file).read_text()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{file} has no {name}"
        body = found[0].body


def test_the_architecture_names_many_places() -> None:
    assert len(PLACES) > 40


def test_the_glossary_has_each_word_once_in_order() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [row for row in rows if row not in ("word", "---")]
    assert len(words) > 50
    assert len(words) == len(set(words))
    assert [word.lower() for word in words] == sorted(word.lower() for word in words)


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_roles_is_that_of_the_code() -> None:
    assert role_table() in (ROOT / "docs/security.md").read_text(), "print it with nearcast.auth.role_table"


PROMISES = re.findall(
    r"^- .*?(?=^- |^$|^#)", (ROOT / "docs/guarantees.md").read_text().partition("## Chaos")[0], re.MULTILINE | re.DOTALL
)
REQUIREMENTS = re.findall(
    r"^\| (?!what |---).*",
    (ROOT / "docs/security.md").read_text().partition("## Requirements")[2].partition("\n## ")[0],
    re.MULTILINE,
)


@pytest.mark.parametrize(
    "promise",
    [*PROMISES, *REQUIREMENTS],
    ids=[re.sub(r"\W+", " ", promise)[:60] for promise in (*PROMISES, *REQUIREMENTS)],
)
def test_each_promise_names_tests_that_exist(promise: str) -> None:
    named, file = 0, ""
    for path, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", promise):
        file = path or file
        if not file:
            continue
        named += 1
        assert re.search(rf"^\s*(async )?(def|class)? ?{test}\b", (ROOT / file).read_text(), re.MULTILINE), (file, test)
    assert named


def test_there_are_many_promises() -> None:
    assert len(PROMISES) > 50
    assert len(REQUIREMENTS) > 40
