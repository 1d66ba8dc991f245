"""`python -m documentation`: write docs/reference anew."""

from __future__ import annotations

from documentation.reference import PAGES, REFERENCE, page

REFERENCE.mkdir(exist_ok=True)
for name in PAGES:
    (REFERENCE / f"{name}.md").write_text(page(name))
