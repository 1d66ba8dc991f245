"""Which site each client calls home (Tanaka et al., RELOC): notifications should be processed near their
publishers, and topics should not be copied to more sites than those can hold."""

from nearcast.placement.homes.baselines import nearest, one_topic_one_site, random
from nearcast.placement.homes.delay import HomesPlan, evaluate
from nearcast.placement.homes.exact import exact
from nearcast.placement.homes.instance import HomesInstance, membership
from nearcast.placement.homes.refined import RefineParameters, refine, refined
from nearcast.placement.homes.reloc import RelocParameters, RelocSteps, reloc, reloc_steps

__all__ = [
    "HomesInstance",
    "HomesPlan",
    "RefineParameters",
    "RelocParameters",
    "RelocSteps",
    "evaluate",
    "exact",
    "membership",
    "nearest",
    "one_topic_one_site",
    "random",
    "refine",
    "refined",
    "reloc",
    "reloc_steps",
]
