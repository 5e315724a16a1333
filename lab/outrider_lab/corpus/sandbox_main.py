"""The program in the sandbox process: reads jobs from standard input and writes one line, 1 or 0, for each.

It runs with -I -S and imports nothing of the package. Generated code sees a short list of builtins and no imports.
"""

import ast
import builtins
import faulthandler
import json
import os
import resource
import signal
import sys

_NAMES = (
    "abs all any bool chr dict divmod enumerate filter float frozenset int isinstance iter len list map max min next "
    "ord pow range repr reversed round set slice sorted str sum tuple zip True False None ArithmeticError Exception "
    "IndexError KeyError StopIteration TypeError ValueError ZeroDivisionError"
)


def _builtins() -> dict[str, object]:
    return {name: getattr(builtins, name) for name in _NAMES.split()}


class _OutOfTime(BaseException):
    """Raised in a job whose time is up; a BaseException, so that `except Exception` does not catch it."""


class _Clock:
    """Interrupts a job when its time is up, and ends the process if the job continues."""

    GRACE_S = 0.2

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._ring)

    def start(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        # A thread in C: it works where the signal handler cannot run, as at the recursion limit or in a bare except.
        faulthandler.dump_traceback_later(self._seconds + self.GRACE_S, exit=True)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def _ring(self, signum: int, frame: object) -> None:
        raise _OutOfTime


def _passes(source: str, function: str, cases: list[list[str]]) -> bool:
    if "__" in source:  # attributes such as __class__ lead out of the builtins above
        return False
    scope: dict[str, object] = {"__builtins__": _builtins()}
    exec(compile(source, "answer", "exec"), scope)
    called = scope.get(function)
    if not callable(called):
        return False
    return all(_same(called(ast.literal_eval(given)), ast.literal_eval(wanted)) for given, wanted in cases)


def _same(got: object, wanted: object) -> bool:
    # True == 1 and 1.0 == 1 in Python; tests of types have to tell them apart.
    return type(got) is type(wanted) and got == wanted


def _judge(job: dict[str, object], clock: _Clock) -> bool:
    try:
        clock.start()
        return _passes(job["source"], job["function"], job["cases"])  # type: ignore[arg-type]  # as the parent wrote them
    except BaseException:  # whatever generated code raises is a failed test
        return False
    finally:
        clock.stop()


def main() -> None:
    request = json.load(sys.stdin)
    memory, seconds = request["limits"]["memory_bytes"], request["limits"]["seconds_per_job"]
    # Verdicts keep a descriptor of their own; what generated code prints goes to /dev/null.
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    cpu = int(seconds * len(request["jobs"])) + 5
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 8),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    clock = _Clock(seconds)
    for job in request["jobs"]:
        os.write(answers, b"1\n" if _judge(job, clock) else b"0\n")


main()
