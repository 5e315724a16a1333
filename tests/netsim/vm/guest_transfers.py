"""`outrider-netsim transfers` without its command: arguments and answer as JSON.

Arguments: {"profile": name, "engine": name, "plan": as its JSON, "repetitions": number, "seed": of the first}. The rows
of the answer have the machine in their engine's name, as "kernel (VM)".
"""

from __future__ import annotations

import asyncio
from typing import Any

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.run import measure_transfers


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    measuring = measure_transfers(
        [profile_named(arguments["profile"])],
        [arguments["engine"]],
        TransferPlan.of(arguments["plan"]),
        repetitions=arguments["repetitions"],
        seed=arguments["seed"],
        say=print,
    )
    report = asyncio.run(measuring).as_json()
    for row in report["rows"]:
        row["engine"] += " (VM)"
    return report
