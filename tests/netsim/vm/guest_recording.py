"""A recording of the kernel engine: UDP packets and TCP through netem, and what the files say of them.

Arguments: {"packets": number of UDP packets each way}.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import guest_kernel

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.recording.recorder import RecordingFiles

CAPTURE, LOG = Path("/tmp/x.pcapng"), Path("/tmp/x.csv")
PROFILE = Profile("recorded", Direction(40, rate_bps=10e6, loss=0.05), Direction(20, 5, "normal"))


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    found = asyncio.run(_record(arguments["packets"]))
    capture = base64.b64encode(CAPTURE.read_bytes()).decode()
    return {**found, "log": LOG.read_text(), "capture": capture}


async def _record(packets: int) -> dict[str, Any]:
    files = RecordingFiles(str(CAPTURE), str(LOG))
    async with KernelLink(PROFILE, Address("127.0.0.1", 9), seed=1, recording=files) as link:
        up = await guest_kernel.udp_pair(link)
        arrived = [len(guest_kernel.send(*pair, packets, 0.002, 1000)[1]) for pair in (up, up[::-1])]
        stats = link.stats
    return {"arrived": arrived, "entered": [stats.up.packets_in, stats.down.packets_in]}
