"""Test what you build with Nearcast: a processor without servers, or real sites on free ports.

`nearcast.testing.fixtures` has pytest fixtures.
"""

from nearcast.domain.topic import TopicSpec
from nearcast.testing.processor_run import Outcome, run_processor
from nearcast.testing.running_sites import RunningSites, sites, until

__all__ = ["Outcome", "RunningSites", "TopicSpec", "run_processor", "sites", "until"]
