"""One answer in one process, cycle by cycle: drafted, accepted, committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from outrider_bench.core.answer_record import gather, mean_acceptance_length
from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.harness.options import sampling_of, source_of, target_of
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.options import TraceOptions
from outrider_client.cli.options import tree_plan
from outrider_client.core.events import Cycle
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.moa.family import TLI
from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Sampling
from outrider_server.engine.reference_decode import plain_decode, plain_greedy

PROMPT = "prompt"  # the row of --prompt-ids
_Trace = dict[str, Any]  # Any: JSON


class TraceStudy(Study[TraceOptions, _Trace, _Trace]):
    """Reports `family`, `output_ids`, `cycles` and `mean_acceptance_length` of an answer.

    With a baseline also `baseline_ids` and `matches_baseline`, which may be false where the acceptance is not
    `lossless`. Nodes are numbered as in DraftTree: the root is not among them, parent -1 is the root, depths count from
    1. The prompt's own request is not a cycle. A cycle for which the drafter had nothing to draft has no nodes. A
    user's `questions` have an answer each for all turns, with their names and categories.
    """

    async def run(self, taken: Mapping[str, _Trace], step: Step) -> Measured[_Trace]:
        options = self.options
        if (options.prompt_ids is None) == (options.questions is None):
            raise UsageError("what to ask: need either --prompt-ids or --questions")
        directory = target_of(options.target)
        config = stop_and_wait_config(
            target=directory,
            drafter=read_source(options.drafter, options.tli),
            codec="float32",
            shape=tree_plan(
                options.choices,
                breadth=options.breadth,
                levels=options.levels,
                budget=options.budget,
                min_probability=options.min_probability,
            ),
            sampling=read_sampling(options),
            max_new_tokens=options.max_new_tokens,
        )
        prompt = None if options.prompt_ids is None else read_token_ids(options.prompt_ids)
        source = None if prompt is not None else source_of(directory, options.questions, options.families)
        async with in_process(directory, config) as pair:
            if prompt is not None and PROMPT not in taken:
                yield PROMPT, await self._traced(pair, prompt)
            if source is None:
                return
            # Earlier turns are answered before the target serves.
            answer = partial(plain_greedy, pair.target)
            asked = source.per_family(pair.models, None, options.max_new_tokens, answer)
            counter = ProgressCounter(step, "tracing", len(asked))
            for question in asked:
                if question.name not in taken:
                    traced = await self._traced(pair, question.prompt)
                    yield question.name, {"name": question.name, "category": question.family, **traced}
                counter()

    def report(self, rows: Mapping[str, _Trace]) -> _Trace:
        return rows[PROMPT] if self.options.questions is None else {"questions": list(rows.values())}

    @staticmethod
    def failures(report: _Trace) -> list[str]:
        wrong = [
            traced.get("name", PROMPT)
            for traced in report.get("questions", [report])
            if traced.get("lossless") and not traced["matches_baseline"]
        ]
        return [f"not the target's own answers: {', '.join(wrong)}"] if wrong else []

    async def _traced(self, pair: InProcessPair, prompt: Sequence[int]) -> _Trace:
        assert pair.models.drafter is not None
        async with pair.client() as client:
            answer = await gather(client, prompt)
        report: _Trace = {
            "family": pair.models.drafter.family,
            "output_ids": answer.token_ids,
            "cycles": [_as_dict(cycle) for cycle in answer.cycles],
            "mean_acceptance_length": mean_acceptance_length(answer.cycles),
        }
        if self.options.baseline:
            # Typical acceptance is lossy: its baseline is the greedy answer.
            baseline = tuple(plain_decode(pair.target, prompt, pair.config.max_new_tokens, pair.config.sampling))
            report |= {"baseline_ids": baseline, "matches_baseline": answer.token_ids == baseline}
            report["lossless"] = pair.config.sampling.acceptance == "exact"
        return report


def _as_dict(cycle: Cycle) -> dict[str, object]:
    assert isinstance(cycle.request, Draft)
    tree = cycle.request.tree
    return {
        "root": cycle.request.root,
        "tokens": tree.tokens,
        "parents": tree.parents,
        "depths": tree.depths(),
        "accepted": cycle.verdict.path,
        "bonus": cycle.verdict.bonus,
    }


def read_source(drafter: str, tli: int | None) -> DrafterSource:
    source = DrafterSource.parse(drafter_source(drafter))
    if tli is None:
        return source
    if (given := source.options.get(TLI)) not in (None, tli):
        raise UsageError(f"tli={tli}, but drafter {drafter} has {given}: give only one")
    if tli < 0:
        raise UsageError(f"tli={tli}: need 0 or more")
    return replace(source, options=source.options.but(tli=tli))


def read_token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"prompt-ids={text!r}: need token ids separated by commas") from None


def read_sampling(options: TraceOptions) -> Sampling:
    if options.acceptance == "greedy":
        return Sampling()
    if options.acceptance not in ("sampling", "typical"):
        raise UsageError(f"acceptance={options.acceptance!r}: need greedy, sampling or typical")
    fields = ("temperature", "top_k", "top_p", "seed", "epsilon", "alpha")
    acceptance = "typical" if options.acceptance == "typical" else "exact"
    return sampling_of(**{name: getattr(options, name) for name in fields}, acceptance=acceptance)
