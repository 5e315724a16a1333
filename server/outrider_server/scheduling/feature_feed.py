"""The feature rows of one stream, posted no faster than its client reads them; the others stay in the session's memory.

        0 .. sent-1                   sent .. promised-1              promised ..
rows    posted as copies, of which    owed to requests that have      not asked for,
        few may wait to be read       had their verdict               or not made yet

A request's rows are promised with its verdict, and no row twice. Only once on every stream may the client ask again for
rows that it was sent: those that were on their way are lost with a link.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from outrider_proto.frames import Features
from outrider_server.engine.sequence import Sequence

_CHUNK_BYTES = 2**20  # copied at once


@dataclass(slots=True)
class _Part:
    """Rows first .. stop-1, to be posted in frames like `frame`."""

    post: Callable[[Features], None]
    frame: Features
    first: int
    stop: int
    num_rows: int  # when it was promised; 0: the frame has its rows already


class FeatureFeed:
    """Posts a stream's rows in order, while at most `max_bytes` of them wait to be read.

    The feed belongs to the engine thread. The event loop only adds to `taken_bytes` what has left the server, and sets
    `abandoned` when the stream ends. `on_full` is called when rows must wait: call pump() once some have been read.
    `on_empty` is called when pump() has posted the last of them. Rows of the first `num_sent` tokens were sent before.
    """

    def __init__(
        self,
        sequence: Sequence,
        num_sent: int = 0,
        max_bytes: int = sys.maxsize,
        on_full: Callable[[], None] = lambda: None,
        on_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self.abandoned = False
        self.max_bytes = max_bytes
        self.taken_bytes = 0
        self._posted_bytes = 0
        self._sequence = sequence
        self._num_promised = num_sent
        self._may_repeat = True
        self._on_full = on_full
        self._on_empty = on_empty
        self._is_full = False
        self._parts: deque[_Part] = deque()

    def begin(self, base_len: int) -> None:
        """Forget rows behind the first `base_len` tokens: the client has said anew what follows them."""
        self._num_promised = min(self._num_promised, base_len)
        for part in self._parts:
            part.stop = min(part.stop, base_len)

    def claim(self, first: int) -> tuple[int, int]:
        """Return the first row for a client that asks from `first` on, and how many rows it is sent again."""
        num_again = self._num_promised - first
        if num_again <= 0:
            return first, 0
        if not self._may_repeat:
            # The rows are on their way: a request that was sent before they came asks for them, too.
            return self._num_promised, 0
        self._may_repeat = False
        return first, num_again

    def promise(self, post: Callable[[Features], None], frame: Features, first: int, stop: int) -> None:
        """Send rows first .. stop-1 in frames like `frame`; where there are none, the rows that `frame` has."""
        self._num_promised = max(self._num_promised, stop)
        last = self._parts[-1] if self._parts else None
        if last is not None and last.frame.seq == frame.seq and last.stop == first:
            last.stop, last.frame = stop, frame  # a Decode's rows of two passes
        else:
            self._parts.append(_Part(post, frame, first, stop, stop - first))
        if not self._is_full:
            self._post_all()

    def pump(self) -> None:
        """Go on after `on_full`."""
        self._post_all()
        if not self._is_full:
            self._on_empty()

    def _post_all(self) -> None:
        self._is_full = False
        while self._parts and not self.abandoned:
            part, unread = self._parts[0], self._posted_bytes - self.taken_bytes
            if part.num_rows == 0:
                self._post(part.post, part.frame)
            elif part.first < (stop := min(part.stop, self._sequence.num_features)):
                if unread >= self.max_bytes:
                    self._is_full = True
                    self._on_full()
                    break
                self._post_rows(part, stop, self.max_bytes - unread)
                continue
            elif part.first < part.stop:
                # They were evicted before they were read: the next request computes them again, and they follow then.
                self._num_promised = min(self._num_promised, part.first)
            self._parts.popleft()

    def _post_rows(self, part: _Part, stop: int, room: int) -> None:
        first, row_bytes = part.first, 4 * max(part.frame.rows.shape[1], 1)
        stop = min(stop, first + max(min(room, _CHUNK_BYTES) // row_bytes, 1))
        part.first = stop
        is_last = stop == part.stop
        rows = self._sequence.feature_rows(first, stop)
        frame = replace(part.frame, first=first, rows=rows, of_rows=part.num_rows)
        self._post(part.post, frame if is_last else replace(frame, last=False, tap_us=0))

    def _post(self, post: Callable[[Features], None], frame: Features) -> None:
        self._posted_bytes += frame.rows.nbytes
        post(frame)
