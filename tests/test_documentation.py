"""The documentation as a site: built without a warning, nothing from other hosts, a reference that is the code's."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation.reference import PAGES, REFERENCE, page

from nearcast.nats import subjects

ROOT = Path(__file__).parents[1]
ALARMS = re.findall(r"- alert: (\w+)", (ROOT / "deploy/grafana/alerts.yml").read_text())


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_that_of_the_code(name: str) -> None:
    assert (REFERENCE / f"{name}.md").read_text() == page(name), "write it anew with: make reference"


def test_every_subject_is_in_the_reference() -> None:
    """The page has what `__all__` of the module names, and tells subjects from functions about them."""
    functions = {
        name for name, made in inspect.getmembers(subjects, inspect.isfunction) if made.__module__ == subjects.__name__
    }
    assert {name for name in functions if not name.startswith("_")} <= set(subjects.__all__)


def test_every_setting_is_explained() -> None:
    empty = re.findall(r"^\| (`\w+`) .*\|  \|$", (REFERENCE / "settings.md").read_text(), re.MULTILINE)
    assert empty == []


def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for file in pages:
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\"\s>]+)", file.read_text())
        loaded += re.findall(
            r"<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+href=\"?(https?:[^\"\s>]+)", file.read_text()
        )
        assert loaded == [], file.name


@pytest.mark.parametrize("alarm", ALARMS)
def test_every_alarm_says_what_to_do(alarm: str) -> None:
    assert f"| {alarm} |" in (ROOT / "docs/operate.md").read_text()


def test_every_decision_has_its_parts() -> None:
    for file in (ROOT / "docs/decisions").glob("*.md"):
        if file.name != "index.md":
            for part in ("**Decided.**", "**Instead of**", "**Measured", "**Follows.**"):
                assert part in file.read_text(), f"{file.name} has no {part}"
            assert f"({file.name})" in (ROOT / "docs/decisions/index.md").read_text()
