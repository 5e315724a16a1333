"""The child of a trial: reads a line of JSON for each piece of work, and answers with one."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from outrider_proto.errors import OutriderError, Refusal

try:
    import resource
except ImportError:  # Windows: the parent's clock is the only limit there
    resource = None  # type: ignore[assignment]
_STATUS = Path("/proc/self/status")  # Linux alone bounds data by what it counts here


def main() -> None:
    mebibytes, modules = int(sys.argv[1]), sys.argv[2:]
    # What a library prints must not look like an answer, nor may it read a request.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if resource is not None:
        # What is tried may be private. A core of up to 0 bytes would still go to a program that the system names.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        # Where the limit is 0 already, only the system's owner may raise it.
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard) if hard == 0 else (1, 1))
    for module in modules:
        with suppress(ImportError):  # the work says what is missing
            import_module(module)
    own = None  # MiB: what this process holds, but for what work on strangers' bytes has left behind
    for line in requests:
        request = json.loads(line)
        module, _, name = request["task"].partition(":")
        function = getattr(import_module(module), name)
        before = _data_mebibytes()
        own = before if own is None else own
        _limit(None if request["is_setup"] else before + mebibytes, request["seconds"])
        answer = _answer(function, request["args"])
        _limit(None, 0)
        if request["is_setup"]:
            own += max(_data_mebibytes() - before, 0)
        # What this one left behind must not be counted to a later one.
        is_full = _data_mebibytes() > own + mebibytes
        answers.write(json.dumps({**answer, "last": is_full}).encode() + b"\n")
        answers.flush()


def _answer(function: Any, args: Any) -> dict[str, Any]:  # Any: a function of JSON, and what JSON holds
    try:
        return {"value": function(*args)}
    except Refusal as error:
        return {"reason": error.reason.name, "message": error.message}
    except OutriderError as error:
        return {"message": str(error)}
    except MemoryError:
        os._exit(1)  # which says it all: some library may be in the middle of something
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return {"message": f"{type(error).__name__}: {first[:200]}"}


def _limit(mebibytes: int | None, seconds: float) -> None:
    if resource is None:
        return
    # By SIGPROF, which ends the process also while a library does not return, and where its parent is gone.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    if _STATUS.exists():
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard if mebibytes is None else mebibytes << 20, hard))


def _data_mebibytes() -> int:
    """Return the size of the data of this process, mapped files not counted; 0 where the system does not tell."""
    if not _STATUS.exists():
        return 0
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) >> 10


if __name__ == "__main__":
    main()
