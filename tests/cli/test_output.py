"""What commands print of what a coordinator answers."""

from __future__ import annotations

import threading

import pytest
import typer

from nearcast.cli.output import print_fields, print_rows, waiting_notice


def test_a_table_in_a_pipe_has_a_line_per_row_and_nothing_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"site": f"s{n}", "url": "nats://" + "x" * 100, "members": ["a", "b"], "lost": None} for n in range(3)]
    print_rows(rows, False, "none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["site", "url", "members", "lost"]
    assert [line.split() for line in lines[1:]] == [[f"s{n}", "nats://" + "x" * 100, "a,", "b", "-"] for n in range(3)]


def test_texts_of_others_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The site `cloud` of an id became an emoji, `[int]` was left out, and `[/x]` in a reason ended the command."""
    row = {"id": "car7~abcde:cloud:1794990487954043:4", "reason": "ValueError: list[int] [red]x[/y]"}
    print_rows([row], False, "none")
    assert capsys.readouterr().out.splitlines()[1].rstrip() == "  ".join(row.values())


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"reason": "a\x1b]0;title\x07b\x9b2J"}
    print_rows([row], False, "none")
    print_fields(row, False)
    shown = "a\\x1b]0;title\\x07b\\x9b2J"
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["reason", shown, f"reason  {shown}"]


def test_what_is_waited_for_is_said_after_a_while_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = list[str](), threading.Event()

    def echo(text: str, err: bool) -> None:
        assert err
        said.append(text)
        now.set()

    monkeypatch.setattr(typer, "echo", echo)
    with waiting_notice("Waiting for Godot.", after=0.01):
        assert now.wait(60)
    with waiting_notice("Not said.", after=3600):
        pass
    with waiting_notice("Not said either.", after=3600) as over:
        over()
        timers = [
            one for one in threading.enumerate() if isinstance(one, threading.Timer) and "either" in str(one.args)
        ]
        for timer in timers:
            timer.join(60)
            assert not timer.is_alive()
    assert said == ["Waiting for Godot."]
