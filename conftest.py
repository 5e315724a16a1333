"""What every test runs under: one torch thread, no network for models, reproducible property tests."""

import os
import tempfile

# A model that the user has installed would be the default target, and the user's configuration would count.
os.environ["XDG_DATA_HOME"] = os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="outrider-tests-")
os.environ.pop("OUTRIDER_CONFIG", None)
os.environ.pop("OUTRIDER_SERVER", None)
os.environ.pop("OUTRIDER_KEY", None)
os.environ.pop("OUTRIDER_KEY_FILE", None)
# Before anything imports huggingface_hub or torch, which read them once. Processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that wait leave the processors to others
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; more threads only get in each other's way

import asyncio
import functools
import gc
import logging
import resource
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from outrider_netsim import EngineError, Link, profile_named
from outrider_proto.terminal.log_limit import LogLimit
from outrider_server.bundles import builder

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # whoever imported torch first

builder._NICE = 0  # or tests that wait for a bundle wait until all others leave it a processor
DATA_HOME = os.environ["XDG_DATA_HOME"]

# Modules and tests live to the end: looking for garbage among them took a sixth of the time that collecting them takes.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """Undo what a command that runs in this process sets: its limit of lines would count those of later tests."""
    root = logging.getLogger()
    level, factory = root.level, logging.getLogRecordFactory()
    yield
    for handler in root.handlers[:]:
        if any(isinstance(each, LogLimit) for each in handler.filters):
            root.removeHandler(handler)
    root.setLevel(level)
    logging.setLogRecordFactory(factory)


def pytest_unconfigure() -> None:
    shutil.rmtree(DATA_HOME, ignore_errors=True)


settings.register_profile("outrider", deadline=None, derandomize=True, database=None)
settings.load_profile("outrider")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell starts in the background,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and would be for all that the tests start


# Tests that would disturb each other run one after another on one worker (pytest-xdist's `--dist loadgroup`).
GROUPS = {
    "waits": "real links and Ray's cluster wait for time to pass, and need the processor when it has",
    "kernel": "two virtual machines at once take memory and processor time from each other's clocks",
    "browser": "Chromium draws and animates in real time",
}
# These folders hold the longest of the other modules.
LONG = ("tests/client/wire/", "tests/client/gateway/", "tests/faults/", "tests/models/training/", "tests/server/")


def group_of(item: pytest.Item) -> str:
    """Return a group of GROUPS, or the test's module: then the fixtures of a module are made once."""
    markers = {marker.name for marker in item.iter_markers()}
    for group in ("kernel", "browser"):
        if group in markers:
            return group
    is_waiting = markers & {"root", "ray"} or "embedded_server" in getattr(item, "fixturenames", ())
    return "waits" if is_waiting else item.location[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give what waits for time to pass the processor before others, where we may."""
    before, is_waiting = os.getpriority(os.PRIO_PROCESS, 0), group_of(item) == "waits"
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, before - 10 * is_waiting)
    try:
        return (yield)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if item.get_closest_marker("kernel") or item.get_closest_marker("ray"):
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest groups in a parallel run, or one worker is left with them at the end."""
    if hasattr(config, "workerinput"):
        slow = {group_of(item) for item in items if item.get_closest_marker("slow")} | GROUPS.keys()

        def turn(item: pytest.Item) -> tuple[int, bool, bool]:
            group = group_of(item)
            return [*GROUPS, group].index(group), group not in slow, not item.location[0].startswith(LONG)

        items.sort(key=turn)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Start more workers than there are processors, as many tests wait; those that are slow wait most."""
    return (yield) + 1 + ("slow" not in config.option.markexpr)


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of checked-in test data."""
    return Path(__file__).parent / "tests" / "data"


@pytest.fixture(
    scope="session",
    params=[
        *(pytest.param(engine, marks=(pytest.mark.root, pytest.mark.slow)) for engine in ("kernel", "tun")),
        "proxy",
    ],
)
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine of a link that this machine allows, in turn."""
    if refusal := refused(request.param):
        pytest.skip(refusal)
    return request.param


@functools.cache
def refused(engine: str) -> str:
    """Why this machine does not allow an engine; empty where it does."""

    async def tried() -> str:
        try:
            async with Link(profile_named("lan"), engine=engine):
                return ""
        except EngineError as error:
            return str(error)

    return asyncio.run(tried())


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """Folder of small checkpoints with the trees, features and logits that their published code gives."""
    return data / "golden"


@pytest.fixture(scope="session")
def room_for() -> Callable[[int], AbstractContextManager[None]]:
    """So many bytes a file for this process, as if the disk were full then; Python sees to it that no signal comes."""

    @contextmanager
    def limited(num_bytes: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
