"""Readers of the published data sets, on small made-up samples in the same formats."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.errors import InputError
from nearcast.lab.workloads import formats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("between", ["\t", " ", ","])
def test_follow_graphs_with_any_usual_separator(written: Callable[[str, str], Path], between: str) -> None:
    lines = ["1000336 1001726", "1000336 1006631", "1000351 1010402", "7 7", "1000336 1001726", "1 2 3"]
    read = formats.read_follows(written("user_sns.txt", "\n".join(lines).replace(" ", between) + "\n"))
    pairs = [(read.users[a], read.users[b]) for a, b in zip(read.follower, read.followee, strict=True)]
    assert pairs == [("1000336", "1001726"), ("1000336", "1006631"), ("1000351", "1010402")]
    assert read.skipped == {"not two ids": 1, "follows itself": 1, "there twice": 1}


def test_towers_whatever_the_case_of_the_header(written: Callable[[str, str], Path]) -> None:
    text = "SITE_ID,LATITUDE,LONGITUDE\n1,-37.8,144.9\n2,,144.9\n3,-37.9,999\n4,0,0\n5,x,1\n"
    read = formats.read_towers(written("sites.csv", text))
    assert (read.lat.tolist(), read.lon.tolist()) == ([-37.8], [144.9])
    assert read.skipped == {"no position": 2, "not on Earth": 2}


def test_cab_traces_are_sorted_by_time(written: Callable[[str, str], Path]) -> None:
    text = "cab,lat,lon,occupied,ts\nb,37.7,-122.4,0,20\na,37.8,-122.5,1,10\na,37.8,-122.5,1,\n"
    read = formats.read_cab_positions(written("cabs.csv.gz", text))
    assert read.who.tolist() == ["a", "b"]
    assert read.time_s.tolist() == [10, 20]
    assert read.skipped == {"no time": 1}


def test_swapped_latitudes_are_mended_and_counted(written: Callable[[str, str], Path]) -> None:
    rows = ["ts,op,id,lat,lon,text", "1,add,a,28.1,-82.3,x", "2,add,b,28.2,-82.4,y", "3,add,c,-82.5,28.3,z"]
    rows += ["4,update,d,,,w", "5,vanish,e,28.0,-82.0,", "x,add,f,28.0,-82.0,"]
    read = formats.read_incidents(written("shelters.csv", "\n".join(rows)))
    assert read.lat.tolist() == [28.1, 28.2, 28.3]
    assert read.lon.tolist() == [-82.3, -82.4, -82.5]
    reasons = {
        "no position": 1,
        "unknown operation": 1,
        "no time": 1,
        "latitude and longitude swapped back": 1,
    }
    assert read.skipped == reasons


def _cities(written: Callable[[str, str], Path], country: str | None = None) -> formats.Cities:
    servers = "id,name,country,latitude,longitude\n1,Here,A,0,10\n2,There,A,0,20\n3,Far,B,0,60\n4,Lost,A,1,1\n"
    pings = "source,destination,min,avg\n1,2,1,30\n2,1,1,20\n1,3,1,0.5\n3,1,1,0.5\n2,3,1,80\n3,2,1,80\n1,99,1,5\n"
    return formats.read_cities(written("servers.csv", servers), written("pings.csv", pings), country)


def test_cities_have_symmetric_round_trips_no_faster_than_light(written: Callable[[str, str], Path]) -> None:
    read = _cities(written)
    assert read.names == ["Here", "There", "Far"]
    # 50 degrees on the equator: 5,560 km, there and back in fibre.
    assert read.rtt_ms[0, 2] == pytest.approx(2 * 5559.8 / 200, rel=1e-3)
    assert read.rtt_ms[0, 1] == 25
    assert (read.rtt_ms == read.rtt_ms.T).all()
    assert (np.diag(read.rtt_ms) == 0).all()
    assert read.skipped == {
        "ping of an unknown city": 1,
        "city without a ping to every other": 1,
        "pair faster than light": 1,
    }


def test_cities_of_one_country(written: Callable[[str, str], Path]) -> None:
    assert _cities(written, "A").names == ["Here", "There"]
    with pytest.raises(InputError, match="no city is in 'Atlantis'"):
        _cities(written, "Atlantis")


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (formats.read_follows, "", "cannot be read"),
        (formats.read_follows, "1\t1\n", "no line has a follower and a followee"),
        (formats.read_towers, "a,b\n1,2\n", "column 'latitude' is missing; the file has: a, b"),
        (formats.read_towers, "latitude,longitude\n", "a header and no rows"),
        (formats.read_towers, "latitude,longitude\n,\n", "no row has a position"),
        (formats.read_cab_positions, "cab,lat,lon,ts\na,1,1,x\n", "no row has a position and a time"),
        (formats.read_incidents, "ts,op,id,lat,lon,text\n1,add,a,,,\n", "no row has a time"),
    ],
)
def test_useless_files_are_refused_in_one_line(
    written: Callable[[str, str], Path], read: Callable[[Path], object], text: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        read(written("file.csv", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [formats.read_follows, formats.read_towers, formats.read_incidents])
def test_a_missing_file_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv, row 0: there is no such file"):
        read(tmp_path / "nowhere.csv")
