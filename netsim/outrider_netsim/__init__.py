"""Emulated links: profiles of 4G, 5G and others, and an engine that puts one under real TCP connections."""

from outrider_netsim.outages import Outage, parse_outage, run_outages
from outrider_netsim.profile import PROFILES, Direction, Profile, ProfileError, profile_named
from outrider_netsim.proxy import LinkStats, ProxyLink
from outrider_netsim.relay import LaneStats

__all__ = [
    "PROFILES",
    "Direction",
    "LaneStats",
    "LinkStats",
    "Outage",
    "Profile",
    "ProfileError",
    "ProxyLink",
    "parse_outage",
    "profile_named",
    "run_outages",
]
