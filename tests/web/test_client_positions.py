"""Where clients are, from what they report."""

from __future__ import annotations

from nearcast.nats import subjects
from nearcast.protocol.reports import ReportedPosition
from nearcast.web.client_positions import ClientPositions, PlacedClient

KYOTO, OSAKA = (35.0, 135.8), (34.7, 135.5)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tell(positions: ClientPositions, home: str, client: str, position: object, seconds: float = 5.0) -> None:
    report = ReportedPosition(client, seconds, position)  # type: ignore[arg-type]
    positions.take(subjects.client_reports(home, client), "", report)


def test_the_last_report_counts_until_the_client_leaves() -> None:
    positions = ClientPositions(Clock())
    tell(positions, "tokyo", "car7", KYOTO)
    tell(positions, "osaka", "car7", OSAKA)
    tell(positions, "tokyo", "car7", None, 0.0)  # the old home is told that it has left, by another way
    assert positions.now() == [PlacedClient("car7", "osaka", OSAKA)]
    tell(positions, "osaka", "car7", None, 0.0)
    assert positions.now() == []


def test_one_that_reports_no_more_is_forgotten() -> None:
    clock = Clock()
    positions = ClientPositions(clock)
    tell(positions, "tokyo", "car7", KYOTO)
    clock.now += 59
    assert len(positions.now()) == 1
    clock.now += 2
    assert positions.now() == []


def test_a_report_about_another_client_does_not_count_and_there_are_not_too_many() -> None:
    positions = ClientPositions(Clock())
    positions.take(subjects.client_reports("tokyo", "mallory"), "", ReportedPosition("car7", 5.0, KYOTO))
    assert positions.now() == []
    for n in range(10_100):
        tell(positions, "tokyo", f"car{n}", KYOTO)
    assert len(positions.now()) == 10_000
