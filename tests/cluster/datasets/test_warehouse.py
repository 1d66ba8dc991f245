"""Files are written atomically, merged without a lock, and hold each record once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.datasets.warehouse import Warehouse, live_files, merges


def batch(n: int) -> str:
    return f"d/batch-{n:020d}.parquet"


def merged(low: int, high: int) -> str:
    return f"d/merged-{low:020d}-{high:020d}.parquet"


def test_files_that_a_merged_one_covers_are_skipped() -> None:
    paths = [batch(1), batch(2), merged(1, 2), batch(3), "d/batch-x.parquet", "d/state.json", batch(4) + ".part"]
    assert [span.path for span in live_files(paths)] == [merged(1, 2), batch(3)]
    assert [span.path for span in live_files([*paths, merged(1, 9)])] == [merged(1, 9)]
    assert [span.path for span in live_files([merged(1, 2), "e/" + batch(1)[2:]])] == [
        merged(1, 2),
        "e/" + batch(1)[2:],
    ]


@given(st.sets(st.integers(1, 200), min_size=1), st.integers(2, 8))
def test_merging_until_nothing_is_left_to_merge_keeps_every_record_once(numbers: set[int], at_least: int) -> None:
    files = {batch(n): {n} for n in numbers}
    while groups := merges(live_files(files), at_least=at_least):
        for group in groups:
            low, high = min(span.low for span in group), max(span.high for span in group)
            files[merged(low, high)] = set().union(*(files[span.path] for span in group))
            seen = [n for span in live_files(files) for n in files[span.path]]
            assert sorted(seen) == sorted(numbers), "a crash between writing and deleting must not show"
            for span in group:
                files.pop(span.path, None) if span.path != merged(low, high) else None
    assert batch(max(numbers)) in files, "the newest batch may be written again"


def test_a_batch_written_again_replaces_itself_and_days_are_deleted(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "w"))
    folder = warehouse.folder("datasets", "x", "data")
    for _ in range(2):
        for n, day in ((1, "1970-01-01"), (2, "1970-01-02")):
            warehouse.write(f"{folder}/day={day}", 7, pa.table({"n": [n]}))
    assert sorted(span.path.split("/")[-2] for span in warehouse.files(folder)) == ["day=1970-01-01", "day=1970-01-02"]
    assert warehouse.delete_days(folder, "1970-01-02") == ["1970-01-01"]
    assert [warehouse.read(span).to_pydict()["n"] for span in warehouse.files(folder)] == [[2]]
    for n in range(8, 12):
        warehouse.write(folder, n, pa.table({"n": [n]}), {"about": n})
    assert warehouse.merge(folder, at_least=3) == 3
    assert sorted(n for span in warehouse.files(folder) for n in warehouse.read(span)["n"].to_pylist()) == [
        2,
        8,
        9,
        10,
        11,
    ]
    newest = next(span for span in warehouse.files(folder) if span.high == 11)
    assert warehouse.metadata(warehouse.read(newest)) == {"about": 11}
    warehouse.save_state(folder, {"position": 3})
    assert warehouse.load_state(folder) == {"position": 3}
