"""What a site changes when it hears from the registry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.topic import TopicSpec
from nearcast.site.assignments import Drop, Inform, Running, Take, changes
from nearcast.wire.control import TopicRecord

GPS = TopicSpec("gps", ("a",))


def record(epoch: int, *members: str) -> TopicRecord:
    return TopicRecord(GPS, epoch, members)


def here(epoch: int, worker: str = "w0") -> dict[str, Running]:
    return {"gps": Running(GPS, worker, epoch)}


def test_a_site_that_comes_back_drops_what_went_elsewhere_before_it_takes_anything() -> None:
    other = TopicRecord(TopicSpec("air", ("a",)), 7, ("a/w0",))
    assert changes("a", here(3), [other, record(5, "b/w1")]) == [Drop("gps", "w0", 5, "b/w1"), Take(other, "w0", "")]


def test_a_move_under_way_is_left_alone() -> None:
    # Started here with epoch 4 while the record still says b, epoch 3.
    assert changes("a", here(4), [record(3, "b/w1")]) == []


def test_a_rolled_back_move_is_dropped() -> None:
    assert changes("a", here(4), [record(5, "b/w1")]) == [Drop("gps", "w0", 5, "b/w1")]


def test_members_hear_of_a_new_epoch() -> None:
    assert changes("a", here(3), [record(5, "a/w0", "b/w1")]) == [Inform("gps", "w0", 5, 2)]
    assert changes("a", here(5), [record(5, "a/w0")]) == []


def test_a_topic_taken_over_comes_with_a_peers_spool() -> None:
    both = record(5, "a/w0", "b/w1")
    assert changes("a", {}, [both]) == [Take(both, "w0", "b/w1")]


def test_a_removed_topic_stops() -> None:
    assert changes("a", here(3), [], {"gps"}) == [Drop("gps", "w0", 3, "")]


def test_a_topic_that_was_started_here_before_its_record_came_goes_on() -> None:
    assert changes("a", here(2), []) == []


def test_another_worker_of_the_same_site() -> None:
    there = record(5, "a/w1")
    assert changes("a", here(4), [there]) == [Drop("gps", "w0", 5, "a/w1"), Take(there, "w1", "")]


@given(
    st.dictionaries(st.sampled_from("xyz"), st.tuples(st.sampled_from(["w0", "w1"]), st.integers(1, 4))),
    st.dictionaries(st.sampled_from("xyz"), st.tuples(st.sampled_from(["a/w0", "a/w1", "b/w0"]), st.integers(1, 4))),
)
def test_following_once_is_enough(running: dict[str, tuple[str, int]], known: dict[str, tuple[str, int]]) -> None:
    state = {name: Running(TopicSpec(name), worker, epoch) for name, (worker, epoch) in running.items()}
    records = [TopicRecord(TopicSpec(name), epoch, (member,)) for name, (member, epoch) in known.items()]
    for change in changes("a", state, records):
        match change:
            case Drop(topic, worker, _, _):
                assert state.pop(topic).worker == worker
            case Take(taken, worker, _):
                state[taken.spec.name] = Running(taken.spec, worker, taken.epoch)
            case Inform(topic, worker, epoch, _):
                state[topic] = Running(state[topic].spec, worker, epoch)
    assert changes("a", state, records) == []
