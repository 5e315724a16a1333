"""Sees the first byte of an answer in what a server sends.

Of HTTP/2 that is the second message of a stream, because the first one only opens it; what the protocol itself sends is
no answer. Of anything else it is the first byte, over TLS that of the handshake.
"""

from __future__ import annotations

import asyncio

FRAME_HEADER_BYTES = 9  # of HTTP/2 (RFC 9113, 4.1): 3 of length, type, flags, 4 of stream
SETTINGS_FRAME, DATA_FRAME = 4, 0  # a server's first frame is SETTINGS, of a few bytes
FULL_FRAME_BYTES = 16_384  # goes on in the next one


class AnswerReader:
    """Reads what a server sends over one connection, and sets `begun` with the first byte of an answer."""

    def __init__(self, begun: asyncio.Event) -> None:
        self._begun = begun
        self._unread = b""
        self._skip = 0  # bytes of a frame that are still to come
        self._opened: set[bytes] = set()  # streams of which a whole message has come
        self._is_http2 = False

    def read(self, data: bytes) -> None:
        if self._begun.is_set():
            return
        passed = min(self._skip, len(data))
        self._skip -= passed
        self._unread += data[passed:]
        while len(self._unread) >= FRAME_HEADER_BYTES and not self._begun.is_set():
            self._read_frame()
        if self._unread and not self._is_http2 and not bytes(2).startswith(self._unread[:2]):
            self._begun.set()

    def _read_frame(self) -> None:
        header, size = self._unread[:FRAME_HEADER_BYTES], int.from_bytes(self._unread[:3])
        kind, stream = header[3], header[5:]
        if (not self._is_http2 and kind != SETTINGS_FRAME) or (kind == DATA_FRAME and stream in self._opened):
            self._begun.set()
            return
        self._is_http2 = True
        if kind == DATA_FRAME and size < FULL_FRAME_BYTES:
            self._opened.add(stream)
        rest = self._unread[FRAME_HEADER_BYTES:]
        self._unread, self._skip = rest[size:], max(0, size - len(rest))
