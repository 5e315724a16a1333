"""Tries work on a stranger's bytes in a child process, which is killed when it takes too much time or memory.

multiprocessing, and the pools built on it (pebble, loky), run the caller's main module again in the child, which
scripts that use a library do not expect. So the child is a plain one: lines of JSON go in and come out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any

from outrider_proto.errors import Reason, Refusal, UsageError

Json = Any  # whatever JSON holds


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one piece of work may take: seconds of processor time, and MiB beside what the child holds before it."""

    seconds: float
    mebibytes: int


# Of each kind of work that a stranger's bytes can cause (docs/security.md).
BOUNDS: Mapping[str, Bounds] = {
    "grammar": Bounds(2.0, 256),
    "template": Bounds(2.0, 256),
    "model": Bounds(60.0, 4096),
}
_CLOCK = 5  # times these seconds may pass by the clock: the machine may be busy
_TO_DIE_S = 5.0
_START_S = 30.0  # by the clock, to start the child and import what it needs


class OutOfBounds(UsageError):
    """Work took more seconds or memory than it may, or ended its process."""


class Stopped(UsageError):
    """Work was ended from outside, or never began, which tells nothing of it."""


class Trial:
    """A child process for one kind of work. It starts when it is first needed, and again after it was killed.

    From any thread; one piece of work at a time, in the order of the calls. A child imports `modules` before its first
    work, whose bounds that does not count to. `times` those of the table, where good input may be large.
    """

    def __init__(self, kind: str, *modules: str, times: float = 1.0) -> None:
        bounds = BOUNDS[kind]
        self._bounds = Bounds(bounds.seconds * times, int(bounds.mebibytes * times))
        self._kind, self._modules = kind, modules
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._num_stops = 0
        self._lock = Lock()

    def run(self, task: str, *args: Json, is_setup: bool = False) -> Json:
        """Return what the function `task`, as "module:name", makes of arguments of JSON, as JSON.

        `is_setup`: work of our own, ahead, whose memory stays and is not counted. Raises what the function does, an
        error that is not ours as UsageError, OutOfBounds, and Stopped.
        """
        seconds = _START_S if is_setup else self._bounds.seconds
        request = json.dumps({"task": task, "args": args, "seconds": seconds, "is_setup": is_setup})
        with self._lock:
            num_stops, child = self._num_stops, self._started()
            timer = Timer(_START_S + _CLOCK * seconds, child.kill)
            timer.daemon = True  # the end of this process does not wait for it
            timer.start()
            try:
                answer = _asked(child, request)
            except BaseException:  # or the next work would get the answer to this one
                self._end()
                raise
            finally:
                timer.cancel()
            if answer is None or answer["last"]:
                # Where it died, its code tells of what: to kill it before it is gone would be what the code tells.
                code = self._end(_TO_DIE_S if answer is None else 0)
        if answer is None:
            raise self._out_of_bounds(code) if self._num_stops == num_stops else _stopped(self._kind)
        return _value(answer)

    def start(self) -> None:
        """Have the child start now, beside the work of this process; return at once."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """Kill the child, also one at work; it and a later `run` raise Stopped. From any thread, at once."""
        self._is_closed = True
        self.stop()

    def stop(self) -> None:
        """Kill the child; what it works on raises Stopped, and a later `run` starts another. From any thread."""
        self._num_stops += 1
        if (child := self._child) is not None:
            child.kill()
        if self._lock.acquire(blocking=False):  # else whoever works with it sees its end
            if self._child is not None:
                self._end()
            self._lock.release()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is not None:
            self._end()
        if self._child is None:
            if self._is_closed:
                raise _stopped(self._kind)
            # One thread: many would count as many seconds, and their stacks as memory.
            paths = os.pathsep.join(path for path in sys.path if path)
            environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            # -P: the directory that somebody works in may hold a stranger's files, and a json.py among them.
            command = [
                *(sys.executable, "-P", "-m", "outrider_drafters.trials.child"),
                *(str(self._bounds.mebibytes), *self._modules),
            ]
            try:
                # A session of its own: Ctrl-C is for the parent.
                self._child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise Stopped(f"{self._kind}: no process can be started to try it in: {error.strerror}") from error
            if self._is_closed:  # meanwhile
                self._child.kill()
        return self._child

    def _end(self, wait_s: float = 0) -> int:
        """Return the exit code of the child, which is gone then, if need be killed after `wait_s`."""
        child, self._child = self._child, None
        assert child is not None
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
        child.kill()
        with suppress(OSError), child:  # closes its pipes, of which one may hold what it did not read
            pass
        return child.wait()

    def _out_of_bounds(self, code: int) -> OutOfBounds:
        if code in (-getattr(signal, "SIGPROF", 0), -getattr(signal, "SIGKILL", 0)):
            return OutOfBounds(f"takes more than {round(self._bounds.seconds, 1):g} s")
        # A library that gets no memory aborts.
        if code in (1, -signal.SIGABRT):
            return OutOfBounds(f"takes more than {self._bounds.mebibytes} MiB")
        return OutOfBounds(f"ends its process (code {code})")


def _stopped(kind: str) -> Stopped:
    return Stopped(f"{kind}: its trial was ended, as nobody waits for it any more")


def _asked(child: subprocess.Popen[bytes], request: str) -> Mapping[str, Json] | None:
    """Return the child's answer; None if it died of the request."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(request.encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
    except OSError:
        return None
    answer: Mapping[str, Json] | None = json.loads(line) if line.endswith(b"\n") else None
    return answer


def _value(answer: Mapping[str, Json]) -> Json:
    match answer:
        case {"value": value}:
            return value
        case {"reason": str(reason), "message": str(message)}:
            raise Refusal(Reason[reason], message)
    raise UsageError(answer["message"])
