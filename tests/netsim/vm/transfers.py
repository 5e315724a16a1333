"""Measure TCP over real netem, in the guest, for the rows "kernel (VM)" and "tun (VM)" of `outrider-netsim transfers`.

    cd tests/netsim
    python -m vm.transfers --profile paper-4g --profile wifi --output vm.json
    python -m vm.transfers --like host.json --engine kernel --engine tun --output vm.json     # its profiles and plan
    outrider-netsim transfers --with vm.json --with host.json

A boot for every repetition, of half a minute (kernel) to minutes (tun). The file is written after each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.report import TransferReport, TransferRow, load_report
from vm.guest import run_in_guest
from vm.prerequisites import missing

Json = dict[str, Any]  # what json.loads gives

GUEST_SCRIPT = Path(__file__).with_name("guest_transfers.py")
TIMEOUT_S = 1800.0
ENGINES = ("kernel", "tun")


def measured_in_guest(profile: str, engine: str, plan: TransferPlan, seed: int, timeout_s: float = TIMEOUT_S) -> Json:
    """The report of one repetition, as JSON, from a guest of its own."""
    order = {"profile": profile, "engine": engine, "plan": asdict(plan), "repetitions": 1, "seed": seed}
    # The kernel's netem takes no seed before Linux 6.6: the guest's own luck is what differs from boot to boot.
    return run_in_guest(GUEST_SCRIPT, order, timeout_s, seed)


def joined(plan: TransferPlan, reports: Sequence[Json]) -> TransferReport:
    """One report of many, of one repetition each."""
    rows: dict[tuple[str, str], list[Json]] = {}
    for report in reports:
        for row in report["rows"]:
            rows.setdefault((row["profile"], row["engine"]), []).append(row)
    return TransferReport(
        plan,
        tuple(
            TransferRow(profile, engine, found[0]["rate_mbps"], _samples(found))
            for (profile, engine), found in rows.items()
        ),
        tuple(made_by for report in reports for made_by in report["made_by"]),
    )


def _samples(repetitions: Sequence[Json]) -> Mapping[str, Sequence[Sequence[float]]]:
    names = dict.fromkeys(name for row in repetitions for name in row["samples"])
    return {name: [samples for row in repetitions for samples in row["samples"].get(name, [])] for name in names}


def main() -> None:
    """Measure what the command line asks for."""
    asked = _arguments()
    if reason := missing():
        sys.exit(f"error: {reason}")
    like = load_report(asked.like) if asked.like else TransferReport(TransferPlan(), (), ())
    profiles = asked.profile or list(dict.fromkeys(row.profile for row in like.rows))
    for name in profiles:
        profile_named(name)
    reports: list[Json] = []
    for seed in range(asked.seed, asked.seed + asked.repetitions):
        for profile in profiles:
            for engine in asked.engine or ["kernel"]:
                started = time.monotonic()
                reports.append(measured_in_guest(profile, engine, like.plan, seed))
                asked.output.write_text(json.dumps(joined(like.plan, reports).as_json()) + "\n")
                print(f"{profile} through {engine}, seed {seed}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="append", help="a built-in name; repeat for several")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="repeat for both; kernel if left out")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first repetition")
    parser.add_argument("--like", type=Path, metavar="FILE", help="a report whose plan, and profiles, to take")
    parser.add_argument("--output", type=Path, metavar="FILE", required=True)
    asked = parser.parse_args()
    if not (asked.profile or asked.like):
        parser.error("name at least one --profile, or a report with --like FILE")
    return asked


if __name__ == "__main__":
    main()
