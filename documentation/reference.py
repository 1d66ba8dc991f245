"""The pages of docs/reference, as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from documentation.cli_reference import cli_reference
from documentation.rest_reference import rest_reference
from documentation.settings_reference import settings_reference
from documentation.subjects_reference import subjects_reference

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAGES", "REFERENCE", "page"]

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_reference,
    "rest": rest_reference,
    "settings": settings_reference,
    "subjects": subjects_reference,
}


def page(name: str) -> str:
    """A page with a note of where it comes from."""
    note = "<!-- Written from the code by `make reference`; a test compares. Do not edit. -->"
    return f"{note}\n{PAGES[name]().strip()}\n"
