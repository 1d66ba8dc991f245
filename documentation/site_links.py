"""A hook of MkDocs: files outside docs/ that pages link to (examples, SECURITY.md) become part of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to."""
    docs = Path(config.docs_dir)
    for page in list(files.documentation_pages()):
        folder = (docs / page.src_uri).parent
        for target, _ in _LINK.findall(page.content_string):
            outside = (folder / target).resolve()
            if not outside.is_relative_to(docs) and outside.is_file():
                uri = _uri(outside, docs)
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(outside)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to where these files are in the site."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        outside = (folder / found[1]).resolve()
        if outside.is_relative_to(docs):
            return found[0]
        target = os.path.relpath(docs / _uri(outside, docs), folder)
        return f"]({target}{found[2] or ''})"

    return _LINK.sub(replaced, markdown)


def _uri(outside: Path, docs: Path) -> str:
    """Python and TOML files are shown as text."""
    name = outside.relative_to(docs.parent).as_posix()
    return f"files/{name}" if name.endswith(".md") else f"files/{name}.txt"
