"""`outrider-netsim probe` without its command, which needs more than a guest has: arguments and answer as JSON.

Arguments: {"profile": name, "loss": instead of the profile's, "engine": name, "packets": for the delay, "loss_packets":
for the loss}.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from outrider_netsim.probe.run import probe_profile
from outrider_netsim.profiles.builtin import profile_named


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    counts = {name: arguments[name] for name in ("packets", "loss_packets")}
    profile = profile_named(arguments["profile"])
    profile = replace(
        profile, **{way: replace(getattr(profile, way), loss=arguments["loss"]) for way in ("up", "down")}
    )
    probe = probe_profile(profile, arguments["engine"], seed=1, **counts)
    return asyncio.run(probe).as_json()
