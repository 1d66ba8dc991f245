"""What a site changes when the registry's records change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord
from nearcast.site.agent.assignments import Host, Release, RunningTopic, UpdateMembers, assignment_changes

GPS = TopicSpec("gps", ("a",))

A0, A1, B0, B1 = (WorkerId(site, worker) for site in "ab" for worker in ("w0", "w1"))


def record(epoch: int, *members: str) -> TopicRecord:
    return TopicRecord(GPS, epoch, members)


def here(epoch: int, worker: str = "w0") -> dict[str, RunningTopic]:
    return {"gps": RunningTopic(GPS, worker, epoch)}


def test_a_site_that_comes_back_releases_what_went_elsewhere_before_it_hosts_anything() -> None:
    other = TopicRecord(TopicSpec("air", ("a",)), 7, (A0,))
    assert assignment_changes("a", here(3), [other, record(5, B1)]) == [
        Release("gps", "w0", 5, B1),
        Host(other, "w0", None),
    ]


def test_a_move_under_way_is_left_alone() -> None:
    # Started here with epoch 4 while the record still says b, epoch 3.
    assert assignment_changes("a", here(4), [record(3, B1)]) == []


def test_a_rolled_back_move_is_released() -> None:
    assert assignment_changes("a", here(4), [record(5, B1)]) == [Release("gps", "w0", 5, B1)]


def test_members_are_told_a_new_epoch() -> None:
    assert assignment_changes("a", here(3), [record(5, A0, B1)]) == [UpdateMembers("gps", "w0", 5, 2)]
    assert assignment_changes("a", here(5), [record(5, A0)]) == []


def test_a_hosted_topic_comes_with_a_peers_spool() -> None:
    both = record(5, A0, B1)
    assert assignment_changes("a", {}, [both]) == [Host(both, "w0", B1)]


def test_a_removed_topic_stops() -> None:
    assert assignment_changes("a", here(3), [], {"gps"}) == [Release("gps", "w0", 3, None)]


def test_a_topic_that_was_started_here_before_its_record_came_goes_on() -> None:
    assert assignment_changes("a", here(2), []) == []


def test_another_worker_of_the_same_site() -> None:
    there = record(5, A1)
    assert assignment_changes("a", here(4), [there]) == [Release("gps", "w0", 5, A1), Host(there, "w1", None)]


@given(
    st.dictionaries(st.sampled_from("xyz"), st.tuples(st.sampled_from(["w0", "w1"]), st.integers(1, 4))),
    st.dictionaries(
        st.sampled_from("xyz"),
        st.tuples(st.sampled_from([A0, A1, B0]), st.integers(1, 4)),
    ),
)
def test_one_pass_is_enough(running: dict[str, tuple[str, int]], known: dict[str, tuple[str, int]]) -> None:
    state = {name: RunningTopic(TopicSpec(name), worker, epoch) for name, (worker, epoch) in running.items()}
    records = [TopicRecord(TopicSpec(name), epoch, (member,)) for name, (member, epoch) in known.items()]
    for change in assignment_changes("a", state, records):
        match change:
            case Release(topic, worker, _, _):
                assert state.pop(topic).worker == worker
            case Host(taken, worker, _):
                state[taken.spec.name] = RunningTopic(taken.spec, worker, taken.epoch)
            case UpdateMembers(topic, worker, epoch, _):
                state[topic] = RunningTopic(state[topic].spec, worker, epoch)
    assert assignment_changes("a", state, records) == []
