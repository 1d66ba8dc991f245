"""JSON payloads to rows: invalid ones are found among many, with the reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.datasets.records import RecordReader, check_readable
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


def test_few_invalid_payloads_are_not_searched_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    parse = RecordReader._parse

    def counted(self: RecordReader, payloads: list[bytes]) -> pa.Table:
        reads.append(len(payloads))
        return parse(self, payloads)

    monkeypatch.setattr(RecordReader, "_parse", counted)
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
