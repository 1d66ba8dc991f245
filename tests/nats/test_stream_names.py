"""Stream names, which are file names, too: plain ones as they always were, each topic its own, none too long."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.subjects import feed, feed_stream, may_keep, publications, stream_name

CHARACTERS = st.characters(codec="utf-8", exclude_categories=("Cs",))


def test_plain_names_are_as_in_the_stores_that_exist() -> None:
    assert stream_name("gps.north.car-7") == "gps_2enorth_2ecar-7"
    assert stream_name("gps.*") == "gps_2e_2a"
    assert stream_name("a_b.>") == "a_5fb_2e_3e"


def test_names_that_shared_a_stream_once_do_not_any_more() -> None:
    assert stream_name("mov._41") != stream_name("mov.彁")


@given(st.text(CHARACTERS, min_size=1, max_size=40), st.text(CHARACTERS, min_size=1, max_size=40))
def test_two_topics_have_two_names(one: str, other: str) -> None:
    assert (stream_name(one) == stream_name(other)) == (one == other)


@given(st.text(CHARACTERS, min_size=100, max_size=3000))
def test_every_name_fits_a_file_system(topic: str) -> None:
    name = stream_name(topic)
    assert re.fullmatch("[A-Za-z0-9_-]+", name)
    assert len(f"{name}.spool") <= 255
    assert name != stream_name(topic + "x")


@given(st.text(CHARACTERS, min_size=1, max_size=40).filter(lambda topic: not set(topic) & set(".*>")))
def test_a_name_tells_which_topics_the_stream_may_keep(level: str) -> None:
    topic = f"gps.{level}"
    for family in (topic, "gps.*", f"*.{level}", "gps.>", ">"):
        assert may_keep(stream_name(family), publications(topic)), family
    for other in (f"gps.{level}x", f"mov.{level}", "mov.*", f"gps.{level}.*", "gps"):
        assert not may_keep(stream_name(other), publications(topic)), other


def test_the_name_of_a_long_topic_and_those_of_datasets() -> None:
    long = f"gps.{'é' * 190}"
    assert may_keep(stream_name(long), publications(long))
    assert may_keep(feed_stream("reports"), feed("reports"))
    assert not may_keep(feed_stream("other"), feed("reports"))
    assert not may_keep(stream_name("gps"), feed("reports"))
