"""What commands print of what a coordinator answers."""

from __future__ import annotations

import pytest

from nearcast.cli.output import print_rows


def test_a_table_in_a_pipe_has_a_line_per_row_and_nothing_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"site": f"s{n}", "url": "nats://" + "x" * 100, "members": ["a", "b"], "lost": None} for n in range(3)]
    print_rows(rows, False, "none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["site", "url", "members", "lost"]
    assert [line.split() for line in lines[1:]] == [[f"s{n}", "nats://" + "x" * 100, "a,", "b", "-"] for n in range(3)]
