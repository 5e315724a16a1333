"""The study behind `outrider-bench network`: one server, every drafter over every link with every seed, run after run.

Rows are a case's setting, and every answer as it comes; with table7 the sizes of messages, by drafter and codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from outrider_bench.core.processes import ServerProcess, pinned_apart
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.report import CsvFile, provenance
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.study import Measured, Study
from outrider_bench.network.link_endpoint import LinkEndpoint, PingStats, open_link, profile_or_none
from outrider_bench.network.messages import MessageSizes, measure_messages
from outrider_bench.network.options import NetworkOptions
from outrider_bench.network.plan import NetworkPlan
from outrider_bench.network.plots import plot_network
from outrider_bench.network.records import AnswerEntry, CaseEntry, CaseKey, Records, Row, answer_rows
from outrider_bench.network.report import ReportedCase, Scenario, ScenarioSetting, network_report
from outrider_bench.network.scenario_run import PromptSet, ScenarioRun, available_variants, run_once, slots_of_run
from outrider_bench.network.tables import (
    cost_table,
    first_token_table,
    legend,
    link_table,
    messages_table,
    pauses_table,
    speed_table,
    split_table,
    text_table,
)
from outrider_bench.network.timed_answer import AnswerSlot
from outrider_bench.network.variants import STREAM, ModeVariant
from outrider_client.core.config import NO_DRAFTER
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS

NetworkRow = CaseEntry | AnswerEntry | MessageSizes


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Figures by case, or with table7 the sizes of messages; `machine` is that on which they were measured."""

    pace: str | None
    cases: tuple[ReportedCase, ...] = ()
    messages: tuple[MessageSizes, ...] = ()
    table3: bool = False
    machine: str = ""


class NetworkStudy(Study[NetworkOptions, NetworkRow, NetworkReport]):
    """Answers of the controls and of every mode, which take turns; their figures come from the answers alone."""

    async def run(self, taken: Mapping[str, NetworkRow], step: Step) -> Measured[NetworkRow]:
        options, plan, records = self.options, self.options.plan, Records(taken)
        if options.table7:
            sizes = measure_messages(plan, options.codecs or CODECS, taken, step)
            async with aclosing(sizes):
                async for of_one in sizes:
                    yield of_one
            return
        with CsvFile(options.csv) as table:
            # Once for all cases: for questions of several turns, the target answers the earlier ones now.
            prompt_set = plan.prompt_set(LocalModels.load(plan.config(NO_DRAFTER)))
            lacking = [key for key in plan.cases if _missing(plan, records, key, prompt_set)]
            if lacking:
                with ServerProcess(plan.server_options) as server, _cores_of(plan, server):
                    for key in lacking:
                        async with aclosing(
                            _measure_case(plan, key, server.address, prompt_set, records, step)
                        ) as found:
                            async for named in found:
                                yield named
            for key in plan.cases:
                table.write(_answer_rows(plan, records, key))

    def report(self, rows: Mapping[str, NetworkRow]) -> NetworkReport:
        plan, made = self.options.plan, provenance()
        if self.options.table7:
            sizes = tuple(row for row in rows.values() if isinstance(row, MessageSizes))
            return NetworkReport(plan.pace, messages=sizes)
        cases = tuple(_scenario_of(plan, Records(rows), key).reported for key in plan.cases)
        machine = f"{made['processor']}, {made['cores']} cores, load {made['load_average']}"
        return NetworkReport(plan.pace, cases, table3=self.options.table3, machine=machine)

    @classmethod
    def as_dict(cls, report: NetworkReport) -> dict[str, Any]:  # Any: JSON
        if report.messages:
            return {"pace": report.pace, "messages": [asdict(one) for one in report.messages]}
        return network_report(report.cases) | {"table3": report.table3, "machine": report.machine}

    @staticmethod
    def tables(report: NetworkReport) -> Iterable[ResultTable]:
        if report.messages:
            yield messages_table(report.messages)
        for case in report.cases:
            yield speed_table(case)
            if case.text:
                yield text_table(case)
            for table in (first_token_table, cost_table, split_table, pauses_table):
                yield table(case)
        if report.table3 or len({case.profile for case in report.cases}) > 1:
            yield link_table(report.cases, "(the paper's Table 3)" if report.table3 else "")

    @staticmethod
    def notes(report: NetworkReport) -> Iterable[str]:
        for case in report.cases:
            yield from legend(case)
            yield from (f"no control {name}: {why}" for name, why in case.missing.items())
            if not case.mismatches:
                yield f"{case.name}: all answers the same; {case.extent}"

    @staticmethod
    def failures(report: NetworkReport) -> Iterable[str]:
        for case in report.cases:
            if case.mismatches:
                yield f"{case.name}: {case.mismatches} answers differ from the stream's; {case.extent}"

    @staticmethod
    def plot(report: NetworkReport, path: Path) -> None:
        if report.messages:
            raise UsageError(f"--plot {path}: sizes of messages have no plot")
        plot_network(report.cases, path, report.machine)


@contextmanager
def _cores_of(plan: NetworkPlan, server: ServerProcess) -> Iterator[None]:
    """Pin the client and the server if the plan says so. Raises UsageError where that is not possible."""
    if not plan.cores_apart:
        yield
        return
    with pinned_apart(server.pid) as pinned:
        if not pinned:
            raise UsageError("cores_apart: need two cores, and a system on which processes can be pinned to them")
        yield


async def _measure_case(
    plan: NetworkPlan, key: CaseKey, server: str, prompts: PromptSet, records: Records, step: Step
) -> Measured[NetworkRow]:
    models = LocalModels.load(plan.config(key.drafter, server=server))
    models.prepare()
    prompt_set, profile = replace(prompts, models=models), profile_or_none(key.profile)
    case = records.case(key)
    if case is None:
        case = await _begun(plan, key, server, prompt_set)
        yield str(key), case
    variants, missing = _variants(plan, case), _missing(plan, records, key, prompt_set)
    counter = ProgressCounter(step, str(key), len(missing))
    for run in range(plan.runs):
        of_run = [slot for slot in missing if slot.run == run]
        if not of_run:
            continue
        # Each run has another link of the same engine: with one seed, all runs would lose the same packets.
        engine = cast(EngineChoice, case.setting.engine)
        async with open_link(profile, server, engine, key.seed + run) as endpoint:
            config = plan.config(key.drafter, server=endpoint.address)
            answers = run_once(variants, prompt_set, config, endpoint, of_run)
            async with aclosing(answers):
                async for slot, pings_ms, answer in answers:
                    asked = prompt_set.asked[slot.place]
                    entry = AnswerEntry(key, slot, asked.family, len(asked.prompt), tuple(pings_ms), answer)
                    yield key.name_of(slot), entry
                    counter()


async def _begun(plan: NetworkPlan, key: CaseKey, server: str, prompt_set: PromptSet) -> CaseEntry:
    """Find out what client, server and machine can do in this case."""
    config = plan.config(key.drafter, server=server)
    variants, missing = await available_variants(plan.all_variants, prompt_set, config)
    async with open_link(profile_or_none(key.profile), server, plan.engine, key.seed) as endpoint:
        setting = _setting(plan, key, endpoint, prompt_set)
    return CaseEntry(key, setting, tuple(variant.name for variant in variants), missing)


def _scenario_of(plan: NetworkPlan, records: Records, key: CaseKey) -> Scenario:
    """Compute a case's figures from its records, all of which must be there."""
    case = records.case(key)
    assert case is not None
    variants, families, runs = _variants(plan, case), tuple[str, ...](), []
    for number in range(plan.runs):
        entries = records.run_of(key, number)
        of_way = {v.name: [entry for entry in entries if entry.slot.way == v.name] for v in variants}
        families = tuple(entry.family for entry in of_way[STREAM])
        trips = PingStats.of([ping for entry in entries for ping in entry.pings_ms])
        answers = {name: [entry.answer for entry in given] for name, given in of_way.items()}
        runs.append(ScenarioRun.of(variants, answers, trips))
    return Scenario(case.setting, variants, case.missing, runs, families, _answer_rows(plan, records, key))


def _answer_rows(plan: NetworkPlan, records: Records, key: CaseKey) -> list[Row]:
    """Return a row per answer of a case."""
    of_prompts = (
        list(group)
        for run in range(plan.runs)
        for _, group in groupby(records.run_of(key, run), key=lambda entry: entry.slot.place)
    )
    return [row for group in of_prompts for row in answer_rows(group, in_corpus=plan.source.file is None)]


def _variants(plan: NetworkPlan, case: CaseEntry) -> list[ModeVariant]:
    return [variant for variant in plan.all_variants if variant.name in case.variants]


def _missing(plan: NetworkPlan, records: Records, key: CaseKey, prompts: PromptSet) -> list[AnswerSlot]:
    """Return the answers that are still to be measured; of a case that was not begun those of all variants."""
    case = records.case(key)
    variants = plan.all_variants if case is None else _variants(plan, case)
    slots = (slot for run in range(plan.runs) for slot in slots_of_run(variants, len(prompts.asked), key.seed, run))
    return [slot for slot in slots if not records.has(key, slot)]


def _setting(plan: NetworkPlan, key: CaseKey, endpoint: LinkEndpoint, prompts: PromptSet) -> ScenarioSetting:
    profile = profile_or_none(key.profile)
    return ScenarioSetting(
        profile=key.profile,
        engine=endpoint.engine,
        why=endpoint.why,
        round_trip_ms=0.0 if profile is None else profile.round_trip_ms,
        drafter=key.drafter,
        codec=plan.codec,
        pace=plan.pace,
        hardware=None if plan.pace is None else asdict(Pace.load(plan.pace)),
        families=plan.source.families,
        prompts=len(prompts.asked),
        max_new_tokens=plan.max_new_tokens,
        prompt_tokens=plan.prompt_tokens,
        cores_apart=plan.cores_apart,
        seed=key.seed,
        tree=_tree(plan, key.drafter, prompts.models),
        questions=None if plan.source.file is None else plan.source.file.name,
    )


def _tree(plan: NetworkPlan, drafter: str, models: LocalModels) -> dict[str, Any]:  # Any: a shape's numbers, or choices
    """Return the tree of the variants that name none of their own."""
    asked = ModeVariant.parse("stream", plan.common).configured(plan.config(drafter)).shape
    own = None if models.drafter is None else models.drafter.plan
    shape = asked or own or TreeShape()
    return asdict(shape)
