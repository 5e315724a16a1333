"""Recovery from a server that is killed and restarted in mid-answer: is the final answer the undisturbed one?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from outrider_bench.core.processes import ServerProcess
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, spread_questions
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.options import RecoverOptions
from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Committed, Finished, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill: when, what was written offline and rolled back, and whether the answer is right."""

    killed_after: int
    interrupted: bool  # false when the whole answer was there before the server died
    unverified: int
    rolled_back: int
    finish: str
    identical: bool


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    drafter: str
    recoveries: Sequence[Recovery]

    @property
    def num_identical(self) -> int:
        return sum(recovery.identical for recovery in self.recoveries)


class RecoverStudy(Study[RecoverOptions, Recovery, RecoveryReport]):
    """Kills the server once in every answer, at a random moment; answers are verified on reconnecting."""

    async def run(self, taken: Mapping[str, Recovery], step: Step) -> Measured[Recovery]:
        options = self.options
        target, drafter = options.directory, next(iter(options.drafters.values()))
        asked = spread_questions(LocalModels.load(ClientConfig(target=target, drafter=NO_DRAFTER)), options.prompts)
        counter = ProgressCounter(step, "killed and restarted", options.prompts)
        generator = random.Random(options.seed)
        with ServerProcess(["--target", str(target), "--drafter", str(drafter)]) as server:
            config = ClientConfig(
                server=server.address, target=target, drafter=drafter, on_reconnect="verify", wait_for_link_s=120.0
            )
            models = LocalModels.load(config)
            async with AsyncClient(config, models=models) as client:
                expected = [(await client.complete(question.prompt)).token_ids for question in asked]
            for question, tokens in zip(asked, expected, strict=True):
                kill_after = _moment(generator, len(tokens))
                if question.name not in taken:
                    async with AsyncClient(config, models=models) as client:
                        yield question.name, await _recover(server, client, question, tokens, kill_after)
                counter()

    def report(self, rows: Mapping[str, Recovery]) -> RecoveryReport:
        return RecoveryReport(next(iter(self.options.drafters)), list(rows.values()))

    @staticmethod
    def tables(report: RecoveryReport) -> list[ResultTable]:
        return [recovery_table(report.recoveries)]

    @staticmethod
    def notes(report: RecoveryReport) -> list[str]:
        total = len(report.recoveries)
        return [f"{report.drafter}: {report.num_identical} of {total} identical to the undisturbed answer"]

    @staticmethod
    def failures(report: RecoveryReport) -> list[str]:
        wrong = len(report.recoveries) - report.num_identical
        return [f"{wrong} answers are other ones after a restart"] if wrong else []


async def _recover(
    server: ServerProcess, client: AsyncClient, question: Question, expected: tuple[int, ...], kill_after: int
) -> Recovery:
    tokens: list[int] = []
    unverified = rolled_back = 0
    interrupted = False
    finish, restarting = "", None
    async with aclosing(client.generate(question.prompt, max_new_tokens=len(expected))) as events:
        async for event in events:
            match event:
                case Committed(tokens=new):
                    tokens += new
                case Unverified(tokens=new):
                    tokens += new
                    unverified += len(new)
                case RolledBack(count=count):
                    del tokens[len(tokens) - count :]
                    rolled_back += count
                case LinkChanged(state=LinkState.OFFLINE):
                    interrupted = True
                case Finished(reason=reason):
                    finish = reason
            if restarting is None and len(tokens) >= kill_after:
                server.kill()
                server.start()
                # Waited for in a thread, since the client writes on offline meanwhile.
                restarting = asyncio.create_task(asyncio.to_thread(server.wait_ready))
    if restarting is not None:
        await restarting
    return Recovery(kill_after, interrupted, unverified, rolled_back, finish, tuple(tokens) == expected)


def _moment(generator: random.Random, num_tokens: int) -> int:
    """Draw the number of tokens before the kill, early enough that verdicts are still to come."""
    # Twelve tokens before the end at the latest: one verdict may bring several.
    return generator.randrange(1, max(2, num_tokens - 12))


def recovery_table(recoveries: Sequence[Recovery]) -> ResultTable:
    """Build a row per kill."""
    rows = [
        [f"{r.killed_after}", _yes(r.interrupted), f"{r.unverified}", f"{r.rolled_back}", r.finish, _yes(r.identical)]
        for r in recoveries
    ]
    return table(
        "the server killed in mid-answer",
        ("killed after", "interrupted", "unverified", "rolled back", "finish", "identical"),
        rows,
    )


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
