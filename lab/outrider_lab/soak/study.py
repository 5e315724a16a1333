"""The study behind `outrider-lab soak`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable, show_line, table
from outrider_bench.harness.study import WholeStudy
from outrider_bench.load.clients.texts import load_texts
from outrider_bench.load.clients.worker_pool import worker_pool
from outrider_bench.load.server_under_test import server_under_test
from outrider_lab.soak.options import SoakOptions
from outrider_lab.soak.run import SoakRun
from outrider_netsim import Link, profile_named

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class SoakReport:
    """A soak's plan and result."""

    plan: dict[str, Any]  # Any: JSON
    soak: dict[str, Any]  # Any: JSON


class SoakStudy(WholeStudy[SoakOptions, SoakReport]):
    """A soak of one number of clients."""

    async def measure(self, step: Step) -> SoakReport:
        options = self.options
        how, plan, shares = options.soak_plan, options.load.plan, options.load.cores
        settings = plan.settings
        texts = load_texts(settings.target, plan.mix, settings.seed, plan.dtype, plan.device, step)
        generator = random.Random(f"{settings.seed}/faults")
        async with server_under_test(None, plan.serve_options, shares.server) as server:
            # The link is in this process, which can silence it and cut its connections.
            profile = profile_named(options.profile)
            async with Link(profile, server.address, "proxy", settings.seed) as link:
                assignment = plan.assignment(plan.clients[0], link.address, texts, shares.clients)
                assignment = replace(assignment, settings=replace(settings, profile=None))
                async with worker_pool(assignment, plan.workers) as pool:
                    run = SoakRun(how, server, shares.server, link, pool, generator, show_line)
                    result = await run.run()
        return SoakReport(plan.as_dict(), asdict(how) | result.to_json())

    @staticmethod
    def tables(report: SoakReport) -> Iterable[ResultTable]:
        yield soak_table(report.soak)

    @staticmethod
    def failures(report: SoakReport) -> Iterable[str]:
        yield from (example for counters in report.soak["clients"] for example in counters["examples"])
        yield from (f"deviation: {deviation}" for deviation in report.soak["deviations"])


def soak_table(soak: Mapping[str, Any]) -> ResultTable:  # Any: JSON
    def total(*names: str) -> str:
        return str(sum(counters[name] for counters in soak["clients"] for name in names))

    rows = [
        ["seconds", f"{soak['seconds']:.0f}"],
        ["answers checked", total("checked")],
        *([name, total(name)] for name in ("tokens", "verdicts", "sessions")),
        *([f"faults: {kind}", str(count)] for kind, count in sorted(soak["faults"].items())),
        ["losses of the link, in answers", total("outages")],
        ["tokens written alone", total("unverified")],
        ["of them taken back", total("rolled_back")],
        ["wrong answers", total("wrong")],
        ["verdicts lost, twice or unasked", total("lost", "strays")],
        *([f"memory of {growth['who']}", _growth(growth)] for growth in soak["growth"]),
    ]
    return table("soak" + (", interrupted" if soak["interrupted"] else ""), ("what", "so many"), rows)


def _growth(growth: Mapping[str, Any]) -> str:  # Any: JSON
    return f"{growth['first_bytes'] / _MIB:.1f} -> {growth['last_bytes'] / _MIB:.1f} MiB ({growth['share']:+.2%})"
