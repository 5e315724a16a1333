from .core.engine_names import EngineChoice as EngineChoice
from .core.engine_names import EngineName as EngineName
from .core.errors import EngineError as EngineError
from .core.errors import ProfileError as ProfileError
from .impairments.path import LinkStats as LinkStats
from .impairments.path import PathStats as PathStats
from .link import Link as Link
from .probe.run import probe_profile as probe_profile
from .profiles.builtin import PROFILES as PROFILES
from .profiles.builtin import profile_named as profile_named
from .profiles.outages import Outage as Outage
from .profiles.outages import parse_outage as parse_outage
from .profiles.outages import run_outages as run_outages
from .profiles.profile import Bursts as Bursts
from .profiles.profile import Direction as Direction
from .profiles.profile import Profile as Profile
from .virtual.clock import VirtualClock as VirtualClock
from .virtual.link import VirtualLink as VirtualLink

__all__ = [
    "PROFILES",
    "Bursts",
    "Direction",
    "EngineChoice",
    "EngineError",
    "EngineName",
    "Link",
    "LinkStats",
    "Outage",
    "PathStats",
    "Profile",
    "ProfileError",
    "VirtualClock",
    "VirtualLink",
    "parse_outage",
    "probe_profile",
    "profile_named",
    "run_outages",
]
