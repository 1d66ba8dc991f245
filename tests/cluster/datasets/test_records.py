"""JSON payloads to rows: invalid ones are found among many, with the reason."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.datasets.records import RecordReader, check_readable
from nearcast.codec import JSON
from nearcast.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("n", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("days", pa.list_(pa.date32())),
        ("inner", pa.struct([("a", pa.int32())])),
    ]
)
INVALID = {
    b"not json": "a JSON object is needed",
    b"": "the payload is empty",
    b'{"id":"a"}{"id":"b"}': "one JSON object is needed",
    b'{"id":"x","n":"three"}': "field n is string, not number",
    b'{"id":"x","n":1.5}': "field n is a fraction, not a whole number",
    b'{"id":"x","n":5000000000}': "couldn't parse:5000000000",
    b'{"id":"x","inner":{"a":"z"}}': "field inner.a is string, not number",
    b'{"id":"x","at":"yesterday"}': "yesterday",
    b'{"id":"x"': "truncated",
    b'{"id":"\xff"}': "utf-8",
    b'{"n":1}': "field id is missing",
}


def good(n: int) -> bytes:
    # Arrow reads this format of a time, the quick look does not.
    at = "2026-11-15 20:00:00" if n % 97 == 0 else "2026-11-15T20:00:00Z"
    return json.dumps({"id": f"r{n}", "n": n, "at": at, "days": ["2026-01-02"], "new": 1}).encode()


@given(st.lists(st.sampled_from([None, None, None, *INVALID]), min_size=1, max_size=60), st.integers(1, 3))
def test_each_payload_is_judged_by_itself(which: list[bytes | None], reads: int) -> None:
    payloads = [good(n) if payload is None else payload for n, payload in enumerate(which)]
    reader = RecordReader(SCHEMA)
    for _ in range(reads):  # a reader that has seen invalid payloads looks first
        values, errors = reader.read(payloads)
        for n, (payload, value, error) in enumerate(zip(which, values.to_pylist(), errors.to_pylist(), strict=True)):
            if payload is None:
                assert (value["id"], value["n"], error) == (f"r{n}", n, None)
                assert value["days"][0].isoformat() == "2026-01-02"
            else:
                assert value is None
                assert INVALID[payload] in error


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many payloads each read of Arrow's has, from now on."""
    reads: list[int] = []
    parse = RecordReader._parse

    def counted(self: RecordReader, payloads: list[bytes]) -> pa.Table:
        reads.append(len(payloads))
        return parse(self, payloads)

    monkeypatch.setattr(RecordReader, "_parse", counted)
    return reads


def test_few_invalid_payloads_are_not_searched_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    payloads = [b'{"id": 7}' if n % 100 == 50 else good(n) for n in range(5000)]
    reader = RecordReader(SCHEMA)
    for _ in range(10):
        _, errors = reader.read([payload for n, payload in enumerate(payloads) if n % 97])
        assert len(errors) - errors.null_count > 40
    assert sum(reads) < 11.2 * 5000, "each payload is parsed about once; halving parsed each seven times"


def test_a_column_that_json_cannot_fill_is_refused() -> None:
    with pytest.raises(InputError, match="column tags is map<string, int32>, which is not read from JSON; allowed"):
        check_readable(pa.schema([("id", pa.string()), ("tags", pa.map_(pa.string(), pa.int32()))]), "dataset d")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"x":' + b"[" * 5000, "nested too deeply"),
        (b'{"id":"x","n":' + b"9" * 6000 + b"}", "couldn't parse:999"),
    ],
    ids=["deep", "long"],
)
def test_a_record_that_was_made_to_hurt_is_invalid_and_the_others_are_read(payload: bytes, reason: str) -> None:
    """One that was nested deeply ended the reading of its dataset for good."""
    values, errors = RecordReader(SCHEMA).read([good(1), payload, good(2)])
    assert [value is None for value in values.to_pylist()] == [False, True, False]
    assert reason in errors[1].as_py()
    assert len(errors[1].as_py()) < 300


WIDE = pa.decimal128(38, 10)
DECIMALS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("dec", WIDE),
        ("price", pa.decimal128(20, 4)),
        ("list", pa.list_(WIDE)),
        ("inner", pa.struct([("dec", WIDE), ("list", pa.list_(pa.struct([("dec", WIDE)])))])),
    ]
)


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "alone"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (b'"dec":12345678901234567890123456789012345678', "field dec: 12345678901234567890123456789012345678.0000"),
        (b'"dec":1e30', "field dec: 1000000000000000000000000000000.0000000000 does not fit DECIMAL(38,10)"),
        (b'"dec":"-1e30"', "field dec: -1000000000000000000000000000000.0000000000 does not fit DECIMAL(38,10)"),
        (b'"dec":"1e28"', "does not fit DECIMAL(38,10)"),
        (b'"dec":1e29', "does not fit DECIMAL(38,10)"),
        (b'"dec":1e31', "does not fit DECIMAL(38,10)"),
        (b'"dec":1e70', "field dec: 1e70 does not fit DECIMAL(38,10)"),
        (b'"dec":1e300', "field dec: 1e300 does not fit DECIMAL(38,10)"),
        (b'"dec":1.00000000001', "field dec: 1.00000000001 does not fit DECIMAL(38,10)"),
        (b'"dec":"NaN"', "field dec: 'NaN' is not a number"),
        (b'"dec":""', "field dec: '' is not a number"),
        (b'"price":1e16', "field price: 10000000000000000.0000 does not fit DECIMAL(20,4)"),
        (b'"list":[1,null,1e30]', "field list: 1000000000000000000000000000000.0000000000 does not fit DECIMAL(38,10)"),
        (b'"inner":{"dec":1e30}', "field inner.dec: 1"),
        (b'"inner":{"list":[null,{"dec":1},{"dec":1e30}]}', "field inner.list.dec: 1"),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_its_decimal_is_refused(fields: bytes, reason: str, mixed: bool) -> None:
    """Arrow's JSON reader let large ones wrap around: 1e30 was stored as 13181135929278455956213638447.87."""
    good = b'{"id":"a","dec":"9999999999999999999999999999.9999999999","inner":{"dec":-2.5,"list":[{"dec":7}]}}'
    others = [good, b'{"id":"b","list":[]}', b'{"id":"c","list":[1.5,null],"inner":{"list":[]}}'] if mixed else []
    values, errors = RecordReader(DECIMALS).read([*others, b'{"id":"x",' + fields + b"}", *others])
    place = len(others)
    assert values[place].as_py() is None
    assert reason in errors[place].as_py()
    assert errors.null_count == 2 * place
    read = values.to_pylist()
    assert values.type == pa.struct([field.with_nullable(True) for field in DECIMALS])
    for a, b, c in (read[:place], read[place + 1 :]) if mixed else ():
        assert (a["dec"], a["list"]) == (Decimal("9999999999999999999999999999.9999999999"), None)
        assert a["inner"] == {"dec": Decimal("-2.5"), "list": [{"dec": Decimal(7)}]}
        assert (b["dec"], b["list"], b["inner"]) == (None, [], None)
        assert (c["list"], c["inner"]) == ([Decimal("1.5"), None], {"dec": None, "list": []})


def test_many_numbers_that_do_not_fit_are_found_in_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    payloads = [b'{"id":"x","dec":1e30}' if n % 2 else b'{"id":"x","dec":1}' for n in range(1000)]
    _, errors = RecordReader(DECIMALS).read(payloads)
    assert (errors.null_count, reads) == (500, [1000])


BINARY = pa.schema(
    [("id", pa.string()), ("bin", pa.binary()), ("more", pa.struct([("bins", pa.list_(pa.binary()))]))]
)  # fmt: skip


def test_binary_is_base64_in_json_as_clients_and_spark_write_it() -> None:
    record = {"id": "a", "bin": b"\x00\xff", "more": {"bins": [b"x", None, b""]}}
    values, errors = RecordReader(BINARY).read([JSON.encode(record), b'{"id":"b"}'])
    assert errors.null_count == 2
    assert values.to_pylist() == [record, {"id": "b", "bin": None, "more": None}]


@pytest.mark.parametrize("text", ["AP8", "AP8=\\n", "_-8=", "é", "AP8=AP8=", "x" * 1001], ids=range(6))
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    good = JSON.encode({"id": "a", "bin": b"\x00\xff"})
    for name, payload in {
        "bin": f'{{"bin":"{text}"}}',
        "more.bins": f'{{"more":{{"bins":[null,"{text}"]}}}}',
    }.items():
        values, errors = RecordReader(BINARY).read([good, payload.encode(), good])
        assert [value is None for value in values.to_pylist()] == [False, True, False]
        assert errors[1].as_py().startswith(f"field {name}: '{text[:2]}")
        assert errors[1].as_py().endswith("is not base64, which BINARY is in JSON")
        assert len(errors[1].as_py()) < 200
