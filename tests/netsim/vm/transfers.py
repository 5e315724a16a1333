"""Measure TCP over real netem, in the guest, for the rows "kernel (VM)" and "tun (VM)" of `outrider-netsim transfers`.

    cd tests/netsim
    python -m vm.transfers --profile paper-4g --profile wifi --output vm.json
    python -m vm.transfers --like host.json --engine kernel --engine tun --output vm.json     # its profiles and plan
    python -m vm.transfers --like host.json --profile lte-edge --measure download --output vm.json
    outrider-netsim transfers --with vm.json --with host.json

A boot for every measure of every repetition, `--jobs` of them at once; its figures are in the file when it ends. The
guest's time jumps over waiting but counts the instructions of all else, so packets and boots cost, not seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.transfers.plan import Measure, TransferPlan, TransferTask
from outrider_netsim.transfers.report import TransferReport, load_report, report_from_json
from vm.guest import GuestError, run_in_guest
from vm.prerequisites import missing

GUEST_SCRIPT = Path(__file__).with_name("guest_transfers.py")
TIMEOUT_S = 1800.0  # of one guest
ENGINES = ("kernel", "tun")


@dataclass(frozen=True, slots=True)
class Boot:
    """What one guest measures."""

    profile: str
    engine: str
    seed: int
    task: TransferTask

    def __str__(self) -> str:
        cut = f" of {self.task.cut_s:g} s" if self.task.cut_s else ""
        return f"{self.profile} through {self.engine}, seed {self.seed}, {self.task.measure}{cut}"


def measured_in_guest(
    profile: str, engine: str, plan: TransferPlan, seed: int, timeout_s: float = TIMEOUT_S
) -> TransferReport:
    """The report of one repetition, from a guest of its own."""
    # The kernel's netem takes no seed before Linux 6.6: the guest's own luck is what differs from boot to boot.
    return report_from_json(run_in_guest(GUEST_SCRIPT, order_for(profile, engine, plan, seed), timeout_s, seed))


def order_for(profile: str, engine: str, plan: TransferPlan, seed: int) -> dict[str, object]:
    """The arguments of the script for one repetition."""
    return {"profile": profile, "engine": engine, "plan": asdict(plan), "repetitions": 1, "seed": seed}


def main() -> None:
    """Measure what the command line asks for."""
    asked = _arguments()
    if reason := missing():
        sys.exit(f"error: {reason}")
    like = load_report(asked.like) if asked.like else TransferReport(TransferPlan(), (), ())
    profiles = asked.profile or list(dict.fromkeys(row.profile for row in like.rows))
    for name in profiles:
        profile_named(name)
    boots = [
        Boot(profile, engine, seed, task)
        for seed in range(asked.seed, asked.seed + asked.repetitions)
        for profile in profiles
        for engine in asked.engine or ["kernel"]
        for task in like.plan.tasks
        if task.measure in (asked.measure or get_args(Measure))
    ]
    sys.exit(not _measure(boots, like.plan, asked.output, asked.jobs))


def _measure(boots: list[Boot], plan: TransferPlan, output: Path, jobs: int) -> bool:
    """Write the figures of all boots that succeed; return whether all did."""
    parts: dict[Boot, TransferReport] = {}
    begun = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[TransferReport], Boot] = {
            pool.submit(measured_in_guest, boot.profile, boot.engine, plan.only(boot.task), boot.seed): boot
            for boot in boots
        }
        for done in as_completed(waiting):
            boot = waiting[done]
            try:
                # The plan of one task is a part of ours.
                parts[boot] = replace(done.result(), plan=plan)
            except GuestError as error:
                # Of one boot: the others are of use without it.
                print(f"{boot}: {error}", file=sys.stderr)
                continue
            # In the order of seeds, whichever guest ended first.
            report = TransferReport(plan, (), ())
            for each in (other for other in boots if other in parts):
                report = report.with_rows_of(parts[each], "the guest")
            output.write_text(json.dumps(report.as_json()) + "\n")
            print(f"{boot}: done, {time.monotonic() - begun:.0f} s after the start", file=sys.stderr)
    return len(parts) == len(boots)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="append", help="a built-in name; repeat for several")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="repeat for both; kernel if left out")
    parser.add_argument("--measure", action="append", choices=get_args(Measure), help="repeat; all if left out")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first repetition")
    parser.add_argument("--jobs", type=int, default=1, help="guests at once; each takes a core and half a gigabyte")
    parser.add_argument("--like", type=Path, metavar="FILE", help="a report whose plan, and profiles, to take")
    parser.add_argument("--output", type=Path, metavar="FILE", required=True)
    asked = parser.parse_args()
    if not (asked.profile or asked.like):
        parser.error("name at least one --profile, or a report with --like FILE")
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs}: need at least 1")
    return asked


if __name__ == "__main__":
    main()
