"""Which site each client calls home (Tanaka et al., RELOC): notifications should be processed near their
publishers, and topics should not be copied to more sites than those can hold."""

from nearcast.placement.homes.delay import HomesPlan, evaluate
from nearcast.placement.homes.exact import exact
from nearcast.placement.homes.planners import (
    RelocParameters,
    nearest,
    one_topic_one_site,
    random,
    reloc,
    reloc_steps,
)
from nearcast.placement.homes.problem import HomesProblem, membership
from nearcast.placement.homes.refined import RefineParameters, refine, refined, refined_with_few_moves

__all__ = [
    "HomesPlan",
    "HomesProblem",
    "RefineParameters",
    "RelocParameters",
    "evaluate",
    "exact",
    "membership",
    "nearest",
    "one_topic_one_site",
    "random",
    "refine",
    "refined",
    "refined_with_few_moves",
    "reloc",
    "reloc_steps",
]
