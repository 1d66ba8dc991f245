"""Files of records: by the schema of their dataset, as records that are fed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.cluster.datasets.csv_cells import cell_value
from nearcast.cluster.datasets.record_files import read_records, read_table
from nearcast.cluster.datasets.schema import column_kinds
from nearcast.errors import InputError
from nearcast.protocol.data_cluster import RecordFile

SCHEMA = pa.schema(
    [("id", pa.string()), ("n", pa.int32()), ("dec", pa.decimal128(38, 10)), ("bin", pa.binary()), ("at", pa.date32())]
)
BOM = b"\xef\xbb\xbf"


def table(name: str, content: bytes) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_table(RecordFile("d", name, content), SCHEMA, {"id"}).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("name", "content"), [("r.jsonl", b'{"id":"007","n":1}\n\n{"id":"b"}\n'), ("r.csv", b"id,n\n007,1\nb,\n")]
)
@pytest.mark.parametrize("start", [b"", BOM], ids=["plain", "bom"])
def test_a_column_that_is_missing_is_null(name: str, content: bytes, start: bytes) -> None:
    empty = {"dec": None, "bin": None, "at": None}
    assert table(name, start + content) == [{"id": "007", "n": 1, **empty}, {"id": "b", "n": None, **empty}]


def test_a_column_that_is_missing_in_parquet_is_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "r.parquet")
    assert read_table(tmp_path / "r.parquet", SCHEMA, {"id"}).to_pylist() == [dict.fromkeys(SCHEMA.names) | {"id": "a"}]


@pytest.mark.parametrize(("name", "content"), [("r.jsonl", b'{"n":1}\n'), ("r.csv", b"n\n1\n")])
def test_a_required_column_that_is_missing_is_refused(name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=f"{name}: .*id.* is missing"):
        table(name, content)


def test_a_file_of_other_columns_is_refused() -> None:
    with pytest.raises(InputError, match=r"r.csv: it has none of the columns id, n, dec, bin, at; the file has: x, y"):
        read_table(RecordFile("d", "r.csv", b"x,y\n1,2\n"), SCHEMA, set())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", b'{"id":"a","dec":"1.5","bin":"AP8=","at":"2026-01-02"}\n{"id":"b"}\n'),
        ("r.csv", b"id,dec,bin,at\na,1.5,AP8=,2026-01-02\nb,,,\n"),
    ],
)
def test_values_are_read_as_those_of_fed_records(name: str, content: bytes) -> None:
    first, second = table(name, content)
    assert (first["dec"], first["bin"], str(first["at"])) == (Decimal("1.5"), b"\x00\xff", "2026-01-02")
    assert (second["dec"], second["bin"], second["at"]) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("r.jsonl", b'{"id":"a"}\n{"id":"b","dec":1e30}\n', "record 2: field dec: 1.* does not fit DECIMAL.38,10"),
        ("r.csv", b"id,dec\na,1\nb,1e30\n", "record 2: field dec: 1.* does not fit DECIMAL.38,10"),
        ("r.csv", b"id,dec\na,1\nb,1e300\n", "field dec: 1e300 does not fit DECIMAL.38,10"),
        ("r.csv", b"id,dec\na," + b"9" * 70 + b"\n", "field dec: "),
        ("r.csv", b"id,dec\na,1.00000000001\n", "field dec: "),
        ("r.csv", b"id,dec\na,x\n", "field dec: 'x' is not a number"),
        ("r.csv", b"id,bin\na,AP8\n", "record 1: field bin: 'AP8' is not base64"),
        ("r.jsonl", b'{"id":"a"}\nno\n', "record 2: a JSON object is needed"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=f"{name}: {reason}"):
        table(name, content)


def test_the_bom_of_a_file_is_not_part_of_its_first_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(BOM + b'{"id":"a"}\n{"id":"b"}\n')
    assert list(read_records(path)) == [b'{"id":"a"}', b'{"id":"b"}']


KINDS = column_kinds(
    "id STRING, n INT, x DOUBLE, ok BOOLEAN, dec DECIMAL(38,10), at TIMESTAMP, bin BINARY, tags ARRAY<INT>"
)


def test_cells_of_csv_are_fed_by_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(
        BOM + b"id,n,x,ok,dec,at,bin,tags,other\n"
        b'007,1,2,true,1.50,2026-01-02 03:04:05,AP8=,"[1,2]",3\n'
        b",,,,,,,,\n"
        b'"",1_0,1_0,no,x,x,x,[,x\n'
        b"NA,9999999999999999999999,nan,,NA,,,,\n"
    )
    first, empty, wrong, last = read_records(path, KINDS)
    at = "2026-01-02 03:04:05"
    assert first == {
        "id": "007", "n": 1, "x": 2.0, "ok": True, "dec": "1.50", "at": at, "bin": "AP8=", "tags": [1, 2], "other": "3"
    }  # fmt: skip
    assert set(empty.values()) == {None}
    assert list(wrong.values()) == ["", "1_0", "1_0", "no", "x", "x", "x", "[", "x"]
    assert [last[name] for name in ("id", "n", "x", "dec")] == ["NA", "9999999999999999999999", "nan", "NA"]


def test_cells_of_csv_are_null_alike_whether_they_are_fed_or_put_in(tmp_path: Path) -> None:
    """An empty text was null when it was fed and "" when it was put in; NA in a column of numbers was null then."""
    content = b'id,n,dec\n,,\n"",1,1.5\nNA,2,2\n'
    (tmp_path / "r.csv").write_bytes(content)
    expected = [None, "", "NA"]
    assert [row["id"] for row in read_records(tmp_path / "r.csv", KINDS)] == expected
    assert [row["id"] for row in read_records(tmp_path / "r.csv")] == expected
    put_in = read_table(RecordFile("d", "r.csv", content), SCHEMA, set()).to_pylist()
    assert [(row["id"], row["n"], row["dec"]) for row in put_in] == [
        (None, None, None), ("", 1, Decimal("1.5")), ("NA", 2, Decimal(2)),
    ]  # fmt: skip
    with pytest.raises(InputError, match="column 'id' has 1 empty values; it is NOT NULL"):
        table("r.csv", content)


@pytest.mark.parametrize("cell", [b"NA", b"null", b'""'])
def test_a_cell_that_is_not_a_number_is_refused_in_a_column_of_numbers(cell: bytes) -> None:
    with pytest.raises(InputError, match="invalid value"):
        table("r.csv", b"id,n\na," + cell + b"\n")


@pytest.mark.parametrize("cell", [b"nan", b"inf", b"-Infinity"])
def test_a_cell_that_json_cannot_have_is_refused(cell: bytes) -> None:
    columns = pa.schema([("id", pa.string()), ("x", pa.float64())])
    with pytest.raises(InputError, match=r"record 3: field x: .* is not a number"):
        read_table(RecordFile("d", "r.csv", b"id,x\na,1.5\nb,\nc," + cell + b"\n"), columns, set())


def test_csv_of_an_unknown_schema_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("id,n\n007,1\n")
    assert list(read_records(path)) == [{"id": 7, "n": 1}]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_bigint_is_a_number_to_its_limits_and_a_text_beyond(number: int) -> None:
    beyond = str(number + (1 if number > 0 else -1))
    assert (cell_value(str(number), "BIGINT"), cell_value(beyond, "BIGINT")) == (number, beyond)
