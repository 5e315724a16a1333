"""Runs in the guest: `outrider-bench tcp` without its command, over real netem.

Arguments: {"modules": path in the package: source, "profile": name or {"up", "down"}, "sysctls", and
those of a Plan}. The answer is a list of cells under "cells".
"""

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.profile import Direction, Profile

PACKAGE = Path("/tmp/outrider_bench")


def main(arguments):
    for name, source in arguments["modules"].items():
        (PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
        (PACKAGE / name).write_text(source)
    sys.path.insert(0, str(PACKAGE.parent))
    return {"runs": [asyncio.run(cells(order)) for order in arguments["orders"]]}


async def cells(order):
    from outrider_bench.studies.tcp.tcp_exchange import ExchangeShape, TcpExchanger, set_sysctls
    from outrider_bench.studies.tcp.tcp_statistics import ExchangePlan, measure_exchanges

    plan = ExchangePlan(
        tuple(ExchangeShape(**shape) for shape in order["shapes"]), tuple(order["idles_s"]), *order["counts"]
    )
    async with KernelLink(profile(order["profile"]), Address("127.0.0.1", 9), seed=1) as link:
        await set_sysctls(link.namespaces, order["sysctls"])
        nagle = order.get("nagle", False)
        return [asdict(cell) for cell in await measure_exchanges(lambda: TcpExchanger(link.namespaces, nagle), plan)]


def profile(described):
    if isinstance(described, str):
        return profile_named(described)
    return Profile("described", Direction(**described["up"]), Direction(**described["down"]))
