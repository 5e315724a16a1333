"""Emulated links: profiles of 4G, 5G and others, and engines that put one under real TCP connections."""

from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.impairments.path import LinkStats, PathStats
from outrider_netsim.link import EngineChoice, Link
from outrider_netsim.profiles.builtin import PROFILES, profile_named
from outrider_netsim.profiles.outages import Outage, parse_outage, run_outages
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.virtual.clock import VirtualClock
from outrider_netsim.virtual.link import VirtualLink

__all__ = [
    "PROFILES",
    "Direction",
    "EngineChoice",
    "EngineError",
    "Link",
    "LinkStats",
    "Outage",
    "PathStats",
    "Profile",
    "ProfileError",
    "VirtualClock",
    "VirtualLink",
    "parse_outage",
    "profile_named",
    "run_outages",
]
