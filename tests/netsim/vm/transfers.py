"""Measure TCP over real netem, in the guest, for the rows "kernel (VM)" and "tun (VM)" of `outrider-netsim transfers`.

    cd tests/netsim
    python -m vm.transfers --profile paper-4g --profile wifi --output vm.json
    python -m vm.transfers --like host.json --engine kernel --engine tun --output vm.json     # its profiles and plan
    outrider-netsim transfers --with vm.json --with host.json

A boot for every repetition, of a minute (kernel) or two (tun) on a quiet machine. The file is written after each.
Profiles with `coherence_ms` are too much for the guest with kernel, which changes netem hundreds of times a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.report import TransferReport, load_report, report_from_json
from vm.guest import GuestError, run_in_guest
from vm.prerequisites import missing

GUEST_SCRIPT = Path(__file__).with_name("guest_transfers.py")
TIMEOUT_S = 1800.0
ENGINES = ("kernel", "tun")


def measured_in_guest(
    profile: str, engine: str, plan: TransferPlan, seed: int, timeout_s: float = TIMEOUT_S
) -> TransferReport:
    """The report of one repetition, from a guest of its own."""
    order = {"profile": profile, "engine": engine, "plan": asdict(plan), "repetitions": 1, "seed": seed}
    # The kernel's netem takes no seed before Linux 6.6: the guest's own luck is what differs from boot to boot.
    return report_from_json(run_in_guest(GUEST_SCRIPT, order, timeout_s, seed))


def main() -> None:
    """Measure what the command line asks for."""
    asked = _arguments()
    if reason := missing():
        sys.exit(f"error: {reason}")
    like = load_report(asked.like) if asked.like else TransferReport(TransferPlan(), (), ())
    profiles = asked.profile or list(dict.fromkeys(row.profile for row in like.rows))
    for name in profiles:
        profile_named(name)
    report = TransferReport(like.plan, (), ())
    failed = False
    for seed in range(asked.seed, asked.seed + asked.repetitions):
        for profile in profiles:
            for engine in asked.engine or ["kernel"]:
                started = time.monotonic()
                try:
                    repetition = measured_in_guest(profile, engine, like.plan, seed)
                except GuestError as error:
                    # Of one boot: the others are of use without it.
                    print(f"{profile} through {engine}, seed {seed}: {error}", file=sys.stderr)
                    failed = True
                    continue
                report = report.with_rows_of(repetition, "the guest")
                asked.output.write_text(json.dumps(report.as_json()) + "\n")
                print(f"{profile} through {engine}, seed {seed}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(failed)


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
