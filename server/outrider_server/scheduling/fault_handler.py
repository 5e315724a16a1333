"""What a failure means: for a session, for the memory, for the device, and at last for the whole process."""

from __future__ import annotations

import logging
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import torch

from outrider_proto.errors import Reason, Refusal
from outrider_server.engine.engine import Engine
from outrider_server.kv.buffers import is_out_of_memory
from outrider_server.scheduling.request import Request

_log = logging.getLogger(__name__)
_MAX_FAILED = 3  # steps in a row in which every session failed; then the target is tried by itself
_DEVICE_ERRORS: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


class FaultHandler:
    """Ends what has failed: a request, or everything where no further pass can run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_failed = 0  # steps since a session had a verdict, in which every session failed
        # Done, with the reason, once no further pass can run. Running: a waiter that gives up must not cancel it.
        self.broken: Future[str] = Future()
        self.broken.set_running_or_notify_cancel()

    def give_up(self, why: str) -> None:
        """Set `broken`; the first reason counts. From any thread."""
        with suppress(InvalidStateError):
            self.broken.set_result(why)

    def count_step(self, num_planned: int, num_results: int, *, has_verdict: bool) -> None:
        """Give up where step after step failed for every session, and the target fails on its own, too."""
        if has_verdict:
            self._num_failed = 0
        elif num_planned and not num_results:
            self._num_failed += 1
        if self._num_failed >= _MAX_FAILED:
            self._num_failed = 0
            # Texts that a target cannot stand are no reason to end: anyone could send them again and again.
            if not self._engine.target_works():
                self.give_up(f"{_MAX_FAILED} passes in a row failed for every session, and the target fails by itself")

    def fail(self, request: Request, error: Exception) -> None:
        """End a request that has failed, and its rows with it; or, for a lost device, everything."""
        if is_out_of_memory(error):
            _log.warning("no memory for a pass: %s", error)
            request.sequence.memory.must_free_all = True  # before the next pass
            request.fail(Refusal(Reason.SERVER_FULL, "the server has no memory for this request now; try again later"))
            return
        if is_lost_device(error):
            _log.error("the target's device failed", exc_info=error)
            first_line, *_ = str(error).splitlines() or [""]
            self.give_up(f"the target's device failed: {first_line}")
            error = about_to_restart()
        request.sequence.invalidate()
        if isinstance(error, Refusal):
            request.fail(error)
            return
        _log.error("a session failed", exc_info=error)
        request.fail(Refusal(Reason.INTERNAL, f"the server failed on this session: {type(error).__name__}"))


def is_lost_device(error: Exception) -> bool:
    """Return whether no further pass can run on the device."""
    return isinstance(error, _DEVICE_ERRORS) and not is_out_of_memory(error)


def about_to_restart() -> Refusal:
    """Return the refusal of whatever comes once no further pass can run."""
    # A reason that clients wait on and resume: the next server goes on from their tokens.
    return Refusal(Reason.SHUTTING_DOWN, "the server is about to restart: its target cannot run any more")
