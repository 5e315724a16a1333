"""What the requests on one connection ask the server for. Pure: whatever else arrives is dropped before it is kept."""

from __future__ import annotations

from typing import assert_never

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import Decode, Draft, Features, Finish, Opened, Pong, ServerFrame, Verdict

_MAX_AWAITED = 1024  # requests without a verdict: far more than are in flight, and their drafts may stay unanswered
_SPARE_ROWS = 2  # a cancelled Decode sends its newest row once more
_FRAME_BYTES = 1024  # the sizes of Python's objects, about: of a frame, of a number in it, of a token's log probability
_NUMBER_BYTES = 40
_LOGPROB_BYTES = 200
_TOP_LOGPROB_BYTES = 128


def num_bytes_of(frame: ServerFrame) -> int:
    """Return about how much memory a frame takes, which may be 20 times what it takes on the wire."""
    match frame:
        case Features():
            return _FRAME_BYTES + frame.rows.nbytes
        case Verdict():
            tops = sum(len(one.top) for one in frame.logprobs)
            numbers = _NUMBER_BYTES * (len(frame.path) + len(frame.tokens))
            return _FRAME_BYTES + numbers + _LOGPROB_BYTES * len(frame.logprobs) + _TOP_LOGPROB_BYTES * tops
        case Opened():
            return _FRAME_BYTES + _NUMBER_BYTES * len(frame.eos_token_ids)
        case Pong():
            return _FRAME_BYTES
        case _:
            assert_never(frame)


class AskedFor:
    """The verdicts and feature values that are still due."""

    def __init__(self) -> None:
        # By seq: how many are due at most, and how many likeliest tokens with each; None: no log probabilities.
        self._verdicts: dict[int, tuple[int, int | None]] = {}
        self._values = 0
        self._newest = 0  # seq of the newest request with features
        self._is_opened = False

    def add(self, request: Draft | Decode, width: int) -> int:
        """Count a request with rows of `width` values; return how many values it asks for at once."""
        root_at = request.base_len + len(request.context)
        most_new = request.max_tokens if isinstance(request, Decode) else len(request.tree.tokens)
        num_verdicts = 1 if isinstance(request, Draft) else most_new + 1  # one when it is cancelled
        self._verdicts[request.seq] = num_verdicts, request.logprobs
        while len(self._verdicts) > _MAX_AWAITED:
            del self._verdicts[next(iter(self._verdicts))]
        if request.features_from is None:
            return 0
        num_known = max(root_at + 1 - request.features_from, 0)
        self._values += width * (num_known + most_new + _SPARE_ROWS)
        self._newest = request.seq
        return width * num_known

    def takes(self, frame: Opened | Verdict | Features) -> bool:
        """Return whether a frame is due, and count it. Raises Violation for Opened in the wrong place."""
        if isinstance(frame, Opened) is self._is_opened:
            wrong = "the server sent a second Opened" if self._is_opened else "the server's first frame is not Opened"
            raise Violation(Reason.MALFORMED_FRAME, wrong)
        self._is_opened = True
        match frame:
            case Opened():
                return True
            case Verdict():
                left, num_top = self._verdicts.pop(frame.seq, (0, None))
                if left and any(num_top is None or len(one.top) > num_top for one in frame.logprobs):
                    raise Violation(Reason.MALFORMED_FRAME, f"verdict {frame.seq}: other log probabilities than asked")
                if left > 1 and frame.finish is Finish.NOT_YET:
                    self._verdicts[frame.seq] = left - 1, num_top
                return left > 0
            case Features():
                is_due = frame.rows.size <= self._values
                self._values -= frame.rows.size if is_due else 0
                if frame.last and frame.seq == self._newest:  # those of earlier requests have arrived before
                    self._values = 0
                return is_due
            case _:
                assert_never(frame)
