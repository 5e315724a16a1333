"""Work in a child: what is too much ends it, and what comes after is not harmed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from outrider_drafters.trials.trial import BOUNDS, Bounds, OutOfBounds, Stopped, Trial
from outrider_proto.errors import UsageError

SECURITY = Path(__file__).parents[3] / "docs/security.md"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone bounds the memory of a process")


@pytest.fixture
def trial(monkeypatch):
    monkeypatch.setitem(BOUNDS, "grammar", Bounds(0.3, 64))
    trial = Trial("grammar")
    yield trial
    trial.close()


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [
        ("math:factorial", [3_000_000], "takes more than 0.3 s"),  # in one call that no signal handler interrupts
        pytest.param("operator:mul", ["x", 1 << 30], "takes more than 64 MiB", marks=LINUX),
        ("os:abort", [], "takes more than 64 MiB"),
        ("os:kill", [0, int(signal.SIGKILL)], "takes more than 0.3 s"),
    ],
)
def test_what_takes_too_much_ends_its_child_and_nothing_else(trial, task, args, message):
    for _ in range(2):
        with pytest.raises(OutOfBounds, match=message) as ended:
            trial.run(task, *args)
        assert not isinstance(ended.value, Stopped)
        assert trial.run("operator:add", 1, 2) == 3


def test_what_a_library_prints_or_reads_is_no_answer(trial):
    assert trial.run("os:system", "echo '{\"value\": 9}'; cat") == 0
    assert trial.run("builtins:print", '{"value": 9}') is None
    assert trial.run("operator:add", 1, 2) == 3


def test_an_error_is_one_line(trial):
    with pytest.raises(UsageError, match=r"^ValueError: invalid literal[^\n]*$"):
        trial.run("builtins:int", "no\nnumber")


@pytest.mark.parametrize("end", [Trial.stop, Trial.close])
def test_work_under_way_can_be_ended_at_once(trial, end):
    errors = []

    def work():
        try:
            trial.run("time:sleep", 600)
        except Stopped as error:
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    while thread.is_alive():
        end(trial)
        thread.join(0.02)
    assert len(errors) == 1
    if end is Trial.stop:
        assert trial.run("operator:add", 1, 2) == 3
    else:
        with pytest.raises(Stopped):
            trial.run("operator:add", 1, 2)


# A user's script that has no main guard, and whose end is not a clean one.
SCRIPT = """
import os
from threading import Thread
from outrider_drafters.trials.trial import BOUNDS, Bounds, Trial
BOUNDS["grammar"] = Bounds(0.3, 64)
trial = Trial("grammar")
print(trial.run("os:getpid"), flush=True)
IS_AT_WORK = {is_at_work}
if IS_AT_WORK:
    Thread(target=trial.run, args=("math:factorial", 10_000_000), daemon=True).start()
    while not trial._lock.locked():
        pass
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for a process by its number")
@pytest.mark.parametrize("is_at_work", [False, True])
def test_a_child_does_not_outlive_its_parent_for_long(is_at_work):
    script = SCRIPT.format(is_at_work=is_at_work)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ}, timeout=60
    )
    status = Path(f"/proc/{ran.stdout.strip()}/status")  # one line: the script has run once
    while _is_running(status):  # the test's time ends it
        pass


def _is_running(status: Path) -> bool:
    try:
        return not re.search(r"^State:\s+Z", status.read_text(), re.MULTILINE)
    except OSError:
        return False


def test_the_table_of_bounds_is_the_one_of_the_documents():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) s \| (\d+) MiB \|$", SECURITY.read_text(), re.MULTILINE)
    assert {kind: Bounds(float(seconds), int(mebibytes)) for kind, seconds, mebibytes in rows} == BOUNDS


@LINUX
def test_what_is_set_up_ahead_may_be_larger_than_the_work_that_follows(trial):
    assert trial.run("builtins:len", "x" * (1 << 20), is_setup=True) == 1 << 20
    assert len(trial.run("operator:mul", "x", 1 << 27, is_setup=True)) == 1 << 27
    assert trial.run("operator:add", 1, 2) == 3


KEEP = "import sys; sys.kept = [*getattr(sys, 'kept', []), 'x' * ({} << 20)]"


@LINUX
def test_what_work_leaves_behind_is_counted_over_all_of_it_and_what_is_set_up_is_not(trial):
    trial.run("builtins:exec", KEEP.format(200), is_setup=True)
    first = trial.run("os:getpid")
    trial.run("builtins:exec", KEEP.format(40))
    trial.run("builtins:len", [], is_setup=True)
    assert trial.run("os:getpid") == first
    trial.run("builtins:exec", KEEP.format(40))
    assert trial.run("os:getpid") != first


def test_a_child_that_cannot_be_started_tells_nothing_of_the_work(trial, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Stopped, match="grammar: no process can be started to try it in: No such file or directory"):
        trial.run("operator:add", 1, 2)
    monkeypatch.undo()
    assert trial.run("operator:add", 1, 2) == 3
