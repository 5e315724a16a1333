"""Time of a target pass over n new tokens of each session, against a decode of a single token of each.

Speculation pays as long as a pass over a whole tree costs little more than a decode. Every size is a root and a chain
below it, run as the server runs a draft; nothing is committed, so every pass has the same context. In each round all
sizes run in random order, so that whatever else the machine does affects all of them, and transformers' own pass
beside each where that is asked for. Intervals are over the rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Literal

import torch
from huggingface_hub import hf_hub_download
from pydantic import Field
from transformers import AutoModelForCausalLM, StaticCache

from outrider_bench.core.bootstrap import Interval, Resamples, quotient
from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.harness.study import WholeStudy
from outrider_bench.studies.options import VerifyCostOptions
from outrider_drafters.checkpoints.catalog import catalog
from outrider_drafters.checkpoints.hf_config import causal_config, explained
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import target_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.attention import IMPLEMENTATION
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import is_small, resolve_device, resolve_dtype
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target, public_name
from outrider_server.kv.memory import KVMemory
from outrider_server.processor.int8_model import round_weights

SIZES = (1, 2, 4, 8, 16, 32, 64)
_WARM_UP = 3  # rounds


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Wall-clock time of a pass over `tokens` new tokens of each of `sessions`, from the draft to the verdict.

    `ratio`: of its median to that of one token of each. `static_ms`: the median of transformers' own pass over the same
    tokens, with a static cache, and the choice of its tokens; `static_ratio`: the median over that. `*_ci95`: 95 %
    intervals.
    """

    tokens: int
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    ratio: float
    median_ms_ci95: Interval | None
    ratio_ci95: Interval | None
    sessions: int = 1
    static_ms: float | None = None
    static_ratio: float | None = None
    static_ratio_ci95: Interval | None = None


@dataclass(frozen=True, slots=True)
class VerifyCostReport:
    """Costs by size, and what was measured on what device."""

    target: str
    context: int
    repeats: int
    dtype: str
    device: str
    pass_: Annotated[Literal["plain", "fused"], Field(alias="pass")]
    costs: abc.Sequence[VerifyCost]


class VerifyCostStudy(WholeStudy[VerifyCostOptions, VerifyCostReport]):
    async def measure(self, step: Step) -> VerifyCostReport:
        options = self.options
        source, fused, counts = str(target_source(options.target)), not options.plain, options.sessions or (1,)
        if options.random:
            target = random_target(source, options.dtype, options.device, fused=fused)
        else:
            target = Target.load(source, options.dtype, options.device, fused=fused)
        if (count := options.threads or (1 if is_small(target.model) else None)) is not None:
            torch.set_num_threads(count)
        counter = ProgressCounter(step, "passes", options.repeats * len(counts))
        return VerifyCostReport(
            target=target.name,
            context=options.context,
            repeats=options.repeats,
            dtype=options.dtype,
            device=device_name(options.device),
            pass_="plain" if target.fused is None else "fused",
            costs=[
                cost
                for sessions in counts
                for cost in verify_costs(
                    target, options.context, options.repeats, counter, sessions=sessions, control=options.control
                )
            ],
        )

    @staticmethod
    def tables(report: VerifyCostReport) -> list[ResultTable]:
        return [verify_cost_table(report.target, report.context, report.costs)]

    @staticmethod
    def plot(report: VerifyCostReport, path: Path) -> None:
        title = f"{report.target}, {report.dtype}, {report.device}, {report.context} tokens before"
        plot_verify_costs(title, report.costs, path)


def random_target(path: str, dtype: str, device: str, *, fused: bool = True) -> Target:
    """Return a target with random weights in the sizes of a checkpoint's config, the only file that is read.

    Raises UsageError.
    """
    on = resolve_device(device)
    try:
        is_here = Path(path).exists() or path in catalog()  # else on the hub, from which nothing else is fetched
        directory = resolve_dir(path) if is_here else Path(hf_hub_download(path, "config.json")).parent
        config = causal_config(directory)
        with torch.random.fork_rng(), on:
            torch.manual_seed(0)
            computed_in = resolve_dtype(dtype, directory, on)
            made_in = computed_in if computed_in.is_floating_point else torch.float32
            model = AutoModelForCausalLM.from_config(config, dtype=made_in)  # type: ignore[no-untyped-call] # transformers
            if computed_in == torch.int8:
                round_weights(model)
            return Target.of(model, name=f"{public_name(path)}, random weights", fused=fused)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error


def verify_costs(
    target: Target,
    context: int,
    repeats: int,
    step: Callable[[], None] = lambda: None,
    *,
    sessions: int = 1,
    control: bool = False,
) -> list[VerifyCost]:
    """Measure all SIZES of so many sessions after `context` tokens each, as medians of `repeats` passes.

    `control`: transformers' own pass, too. `step` is called after every round. Raises UsageError where the target's
    context has no room for them.
    """
    room = target.max_context - SIZES[-1] - 1
    if not 1 <= context <= room:
        raise UsageError(f"context={context}: need 1 to {room}, so that {SIZES[-1]} more tokens fit into it")
    passes = {"own": _ServerPass(target, sessions, context).seconds}
    if control:
        passes["static"] = _StaticCachePass(target, sessions, context).seconds
    times: dict[str, dict[int, list[float]]] = {name: {size: [] for size in SIZES} for name in passes}
    for number in range(_WARM_UP + repeats):
        for size in random.Random(number).sample(SIZES, len(SIZES)):
            for name, seconds_of in passes.items():
                seconds = seconds_of(size)
                if number >= _WARM_UP:
                    times[name][size].append(seconds * 1e3)
        if number >= _WARM_UP:
            step()
    draws, own, static = Resamples(1, repeats), times["own"], times.get("static", {})
    return [_cost(size, sessions, each, own[1], static.get(size), draws) for size, each in own.items()]


def _cost(
    tokens: int,
    sessions: int,
    times_ms: list[float],
    decode_ms: list[float],
    static_ms: list[float] | None,
    draws: Resamples,
) -> VerifyCost:
    drawn, drawn_decode = (draws.medians([times]) for times in (times_ms, decode_ms))
    median = statistics.median(times_ms)
    static = None if static_ms is None else statistics.median(static_ms)
    return VerifyCost(
        tokens,
        median_ms=round(median, 4),
        fastest_ms=round(min(times_ms), 4),
        slowest_ms=round(max(times_ms), 4),
        ratio=round(median / statistics.median(decode_ms), 4),
        median_ms_ci95=draws.interval(drawn),
        ratio_ci95=draws.interval(quotient(drawn, drawn_decode)),
        sessions=sessions,
        static_ms=None if static is None else round(static, 4),
        static_ratio=None if static is None else round(median / static, 4),
        static_ratio_ci95=None if static_ms is None else draws.interval(quotient(drawn, draws.medians([static_ms]))),
    )


class _ServerPass:
    """A pass of the server's engine over a root and a chain below it of each session."""

    def __init__(self, target: Target, sessions: int, context: int) -> None:
        self._engine, memory = Engine(target), KVMemory(target.kv, sharing="none")
        self._sequences = [Sequence(memory, None) for _ in range(sessions)]
        for number, sequence in enumerate(self._sequences):
            (outcome,) = self._engine.verify([StepInput(sequence, _tokens(target, context, number))])
            self._engine.commit(outcome)

    def seconds(self, size: int) -> float:
        """Return the seconds of one pass over a root and size - 1 drafted tokens of each."""
        inputs = []
        for number, sequence in enumerate(self._sequences):
            root, *drafted = _tokens(self._engine.target, size, number)
            inputs.append(StepInput(sequence, (root,), DraftTree.chain(drafted), Sampler(Sampling())))
        started = time.monotonic()
        self._engine.verify(inputs)
        return time.monotonic() - started


class _StaticCachePass:
    """transformers' own pass over the same rows, all sessions in one batch, with the choice of all tokens."""

    @torch.inference_mode()
    def __init__(self, target: Target, sessions: int, context: int) -> None:
        self._target, self._context, self._sessions = target, context, sessions
        self._cache = StaticCache(config=target.model.config, max_cache_len=context + SIZES[-1])
        self._run(context, logits_to_keep=1)

    @torch.inference_mode()
    def seconds(self, size: int) -> float:
        """Return the seconds of one pass over `size` tokens of each."""
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._context)  # type: ignore[union-attr] # back to where all passes begin
        return self._run(size)

    def _run(self, size: int, logits_to_keep: int = 0) -> float:
        model = self._target.model
        tokens = [_tokens(self._target, size, number) for number in range(self._sessions)]
        model.set_attn_implementation("sdpa")
        try:
            started = time.monotonic()
            rows = torch.tensor(tokens, device=model.device)
            out = model(input_ids=rows, past_key_values=self._cache, use_cache=True, logits_to_keep=logits_to_keep)
            out.logits.argmax(-1).cpu()
            return time.monotonic() - started
        finally:
            model.set_attn_implementation(IMPLEMENTATION)


def _tokens(target: Target, count: int, session: int) -> list[int]:
    """Return arbitrary tokens, others for each session."""
    return [(7919 * i + 13 + 101 * session) % target.vocab_size for i in range(count)]


def verify_cost_table(name: str, context: int, costs: abc.Sequence[VerifyCost]) -> ResultTable:
    many, control = any(cost.sessions > 1 for cost in costs), any(cost.static_ms is not None for cost in costs)
    rows = [
        [
            *([f"{cost.sessions}"] if many else []),
            f"{cost.tokens}",
            plus_minus(cost.median_ms, cost.median_ms_ci95, 2),
            *(f"{ms:.2f}" for ms in (cost.fastest_ms, cost.slowest_ms)),
            plus_minus(cost.ratio, cost.ratio_ci95, 2),
            *([f"{cost.static_ms:.2f}", plus_minus(cost.static_ratio, cost.static_ratio_ci95, 2)] if control else []),
        ]
        for cost in costs
    ]
    columns = (
        *(("sessions",) if many else ()),
        *("new tokens", "median ms", "fastest", "slowest", "x decode"),
        *(("static cache ms", "x static cache") if control else ()),
    )
    static = "; static cache: transformers' own pass over the same tokens" if control else ""
    title = f"a pass of {name} after {context} tokens"
    return table(title, columns, rows, caption=f"±: 95 % interval over the rounds{static}")


def device_name(name: str) -> str:
    """Return the name of the accelerator, or of the device."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name


def plot_verify_costs(title: str, costs: abc.Sequence[VerifyCost], path: Path) -> None:
    """Plot the time of a pass, in decodes of as many sessions, against its new tokens."""
    with saved_figure(path, figsize=(6.5, 4.5)) as (_, axes):
        counts = list(dict.fromkeys(cost.sessions for cost in costs))
        sizes = list(dict.fromkeys(cost.tokens for cost in costs))
        for color, count in zip(cycle(COLORS), counts, strict=False):
            own = [cost for cost in costs if cost.sessions == count]
            ratios = {str(cost.tokens): cost.ratio for cost in own}
            errors = reaches(ratios, {str(cost.tokens): cost.ratio_ci95 for cost in own})
            label = "one pass" if len(counts) == 1 else f"{count} sessions"
            axes.errorbar(sizes, list(ratios.values()), errors, fmt="o-", capsize=2, color=color, label=label)
        axes.plot(sizes, sizes, "--", color="grey", label="as many decodes")
        axes.axhline(1, color="black", linewidth=1, label="one decode")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_yticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("new tokens in a pass")
        axes.set_ylabel("time of the pass, in decodes")
        axes.set_title(title, fontsize="medium")
        axes.legend(frameon=False)
