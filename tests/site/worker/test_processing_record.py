"""What is under way and what was marked lately, known by source and number, or by id."""

from __future__ import annotations

import numpy as np

from nearcast.domain.number_ranges import NumberRanges
from nearcast.site.worker.processing_record import ProcessingRecord


def publication(number: int, source: str = "car~a1") -> bytes:
    return f"{source}:tokyo:1700000000000000:{number}".encode()


def test_a_publication_is_under_way_until_it_leaves_whatever_it_is_known_by() -> None:
    record = ProcessingRecord()
    ids = [publication(1), publication(2), publication(1, "bus~b2"), b"made-by-others", b"anonymous:tokyo:17:1"]
    for message_id in ids:
        record.add(message_id)
    assert all(message_id in record for message_id in ids)
    assert publication(3) not in record
    assert publication(2, "bus~b2") not in record
    for message_id in ids:
        record.leave(message_id)
        assert message_id not in record
    assert record.is_empty


def test_a_dead_letter_that_is_tried_again_leaves_as_a_whole() -> None:
    """It failed and waits for its mark, known by its number, and was put into the queue again, known by its id."""
    record = ProcessingRecord()
    record.add(publication(1))
    record.in_flight.add(publication(1))
    record.retried.add(publication(1))
    record.leave(publication(1))
    assert record.is_empty
    assert not record.retried


def test_what_was_marked_lately_agrees_with_a_set() -> None:
    """Numbers in any order, of several sources; the last 16,384 at least are remembered, twice as many at most."""
    random = np.random.default_rng(7)
    record, marked = ProcessingRecord(), list[tuple[int, int]]()
    for _ in range(300):
        source = int(random.integers(3))
        numbers = random.choice(10_000, size=200, replace=False).tolist()
        record.marked.add_ranges(b"s~%d" % source, NumberRanges.of(numbers), len(numbers))
        marked += [(source, number) for number in numbers]
    latest, possible = set(marked[-16_384:]), set(marked[-2 * 16_384 - 400 :])
    for source in range(3):
        for number in range(10_000):
            known = publication(number, f"s~{source}") in record.marked
            assert known or (source, number) not in latest
            assert not known or (source, number) in possible
