"""The bar is for people who wait: not for pipes, not for quick work."""

from __future__ import annotations

import io
import threading

import pytest

from nearcast.cli import progress_bar as module
from nearcast.cli.progress_bar import progress


class Terminal(io.StringIO):
    """A standard error that says it is a terminal and tells when the bar was drawn."""

    def __init__(self, watched: str) -> None:
        super().__init__()
        self.watched = watched
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.watched in text:
            self.drawn.set()
        return super().write(text)


def open_terminal(monkeypatch: pytest.MonkeyPatch, shown_after: float) -> Terminal:
    """Not a fixture: pytest puts its own standard error in place between set-up and test."""
    stderr = Terminal("placing clients")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(module, "SHOWN_AFTER_SECONDS", shown_after)
    return stderr


def test_slow_work_shows_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, shown_after=0.0)
    with progress("placing clients") as advance:
        advance(0.5)
        assert terminal.drawn.wait(10)
    assert "\x1b[2K" in terminal.getvalue()  # the line was erased


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, shown_after=3600.0)
    with progress("placing clients") as advance:
        advance(1.0)
    assert "placing" not in terminal.getvalue()


def test_an_error_leaves_the_terminal_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, shown_after=0.0)

    def fail() -> None:
        with progress("placing clients"):
            assert terminal.drawn.wait(10)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_AFTER_SECONDS", 0.0)
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    with progress("placing clients") as advance:
        advance(0.5)
    assert stderr.getvalue() == ""
