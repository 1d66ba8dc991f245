"""Tables are validated as they enter: every refusal names file, row and reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from nearcast import InputError
from nearcast.cli.tables import Column, Ids, read_table, write_table

if TYPE_CHECKING:
    from pathlib import Path

SITES = [Column("site", "text"), Column("storage"), Column("slots", "integer", optional=True)]


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sites.csv"
    path.write_text(text)
    return path


def test_reads_text_as_text_and_numbers_as_numbers(tmp_path: Path) -> None:
    table = read_table(csv(tmp_path, "site,storage,slots\n007,1.5,2\nb,3,4\n"), SITES, key=["site"])
    assert list(table["site"]) == ["007", "b"]
    np.testing.assert_array_equal(table["storage"], [1.5, 3.0])
    np.testing.assert_array_equal(table["slots"], [2, 4])


def test_columns_that_are_not_read_may_have_any_name(tmp_path: Path) -> None:
    assert read_table(csv(tmp_path, "site,storage,note,note,,\na,1,b,c,,\n"), SITES).rows == 1


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    path = tmp_path / "sites.parquet"
    pa.parquet.write_table(pa.table({"site": ["a"], "storage": [2]}), path)
    assert read_table(path, SITES)["storage"][0] == 2.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("site\na\n", "row 0 (header): column 'storage' is missing"),
        ("site,storage\n", "row 1: the file has a header and no rows"),
        ("site,storage\na,1\nb,\n", "row 2: storage is empty"),
        ("site,storage\na,1\nb,x\n", "row 2: storage is 'x', not a number"),
        ("site,storage,site\na,1,b\n", "row 0 (header): column 'site' is there twice"),
        ("site,storage\na,-1\n", "row 1: storage is -1; at least 0 is needed"),
        ("site,storage\na,nan\n", "row 1: storage is nan; a finite number is needed"),
        ("site,storage\na,inf\n", "row 1: storage is inf; a finite number is needed"),
        ("site,storage,slots\na,1,1.5\n", "row 1: slots is 1.5; a whole number is needed"),
        ("site,storage\na,1\nb,1\na,2\n", "row 3: site 'a' is there twice, first in row 1"),
        ("", "row 0: cannot be read as a table"),
        ("site,storage\na,1,2\n", "row 0: cannot be read as a table"),
    ],
)
def test_refusals_name_file_row_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        read_table(csv(tmp_path, text), SITES, key=["site"])
    assert str(caught.value).startswith(f"{tmp_path / 'sites.csv'}, {reason}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_table(tmp_path / "none.csv", SITES)


def test_choices_are_named(tmp_path: Path) -> None:
    path = csv(tmp_path, "role\npub\nboth\nme\n")
    with pytest.raises(InputError, match="row 3: role is 'me'; allowed: pub, sub, both"):
        read_table(path, [Column("role", "text", choices=("pub", "sub", "both"))])


def test_unknown_identifiers_are_named(tmp_path: Path) -> None:
    sites = Ids("site", tmp_path / "sites.csv", np.array(["a", "b"], dtype=object))
    path = tmp_path / "current.csv"
    path.write_text("site\nb\na\nc\n")
    table = read_table(path, [Column("site", "text")])
    with pytest.raises(InputError, match=r"current.csv, row 3: site 'c' is not a site of .*sites.csv"):
        sites.positions(table, "site")


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_table(path, {"client": ["x", "y, z"], "site": np.array(["a", "b"], dtype=object)})
    assert path.read_text() == 'client,site\nx,a\n"y, z",b\n'
    assert list(read_table(path, [Column("client", "text")])["client"]) == ["x", "y, z"]


def test_a_key_of_several_columns_is_the_whole_of_them(tmp_path: Path) -> None:
    columns = [Column("a", "text"), Column("b", "text"), Column("n", "integer")]
    path = tmp_path / "rows.csv"
    path.write_text("a,b,n\nx,y,1\nx,z,1\nw,y,1\nx,y,2\n")
    assert read_table(path, columns, key=["a", "b", "n"]).rows == 4
    path.write_text("a,b,n\nw,y,1\nx,z,1\nx,y,2\nx,z,1\nw,y,1\n")
    with pytest.raises(InputError, match="row 4: a 'x', b 'z', n 1 is there twice, first in row 2"):
        read_table(path, columns, key=["a", "b", "n"])


def test_text_makes_no_python_objects_until_asked_for(tmp_path: Path) -> None:
    table = read_table(csv(tmp_path, "site,storage\na,1\nb,2\n"), SITES)
    assert isinstance(table.columns["site"], pa.Array)
    assert table["site"].tolist() == ["a", "b"]
