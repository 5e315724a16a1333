"""Incremental detokenization. Text that ends within a character is held back until the character is complete.

Tokens that arrive together are decoded together. A frame records the state after each step: a rollback pops frames and
decodes again what is left of the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

REPLACEMENT = "\ufffd"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class _Frame:
    """State after `num_tokens`: tokens before `shown` are decoded; decoding starts at `context`."""

    num_tokens: int
    context: int
    shown: int
    num_chars: int


class Detokenizer:
    """Turns the tokens of one answer into text as they arrive."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._frames = [_Frame(0, 0, 0, 0)]
        self.text = ""  # so far, without what is held back

    def push(self, tokens: Sequence[int]) -> str:
        before = len(self.text)
        if tokens and not self._push(tokens):
            for token in tokens:
                if not self._push((token,)):
                    self._hold(token)
        return self.text[before:]

    def roll_back(self, num_tokens: int) -> str:
        """Keep the first `num_tokens` and return the text that is removed."""
        before = self.text
        while self._frames[-1].num_tokens > num_tokens:
            self._frames.pop()
        frame = self._frames[-1]
        again = self._tokens[frame.num_tokens : num_tokens]
        del self._tokens[frame.num_tokens :]
        self.text = before[: frame.num_chars]
        self.push(again)
        return before[len(self.text) :]

    def finish(self) -> str:
        """Return the text still held back, with the replacement character where bytes are missing."""
        frame = self._frames[-1]
        rest = self._new_text(frame)
        self.text += rest
        end = len(self._tokens)
        self._frames[-1] = _Frame(end, end, end, len(self.text))
        return rest

    def _push(self, tokens: Sequence[int]) -> bool:
        """Append tokens that end at a character's end; return False and change nothing if they do not."""
        frame = self._frames[-1]
        new = self._new_text(frame, tokens)
        if not new or new.endswith(REPLACEMENT):
            return False
        self.text += new
        self._tokens += tokens
        self._frames.append(_Frame(len(self._tokens), frame.shown, len(self._tokens), len(self.text)))
        return True

    def _hold(self, token: int) -> None:
        self._tokens.append(token)
        self._frames.append(replace(self._frames[-1], num_tokens=len(self._tokens)))

    def _new_text(self, frame: _Frame, tokens: Sequence[int] = ()) -> str:
        # Decoders look at neighbors (spaces, merged bytes), so new tokens are decoded with those of the last two
        # boundaries before them, and the known text is cut off again. Decoding them alone gives other text.
        known = self._decode(self._tokens[frame.context : frame.shown])
        return self._decode([*self._tokens[frame.context :], *tokens])[len(known) :]


TokenFragments = Mapping[int, bytes]  # by token id

_TYPE = re.compile(r'"type": ?"(\w+)"')  # of a decoder, or of one in it, in JSON
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SHOWN_AS_THEMSELVES = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_OTHERS = (byte for byte in range(256) if byte not in _SHOWN_AS_THEMSELVES)
# GPT-2's table: bytes that print nothing take the characters from U+0100 on, in order.
_BYTE_OF = {chr(byte): byte for byte in _SHOWN_AS_THEMSELVES} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}


def token_fragments(tokenizer: Any) -> TokenFragments:  # Any: the library's class has no annotations
    """Return the bytes of tokens that are pieces of a character, which decoding alone would turn into U+FFFD.

    byte-level vocabularies (GPT-2, Llama 3, Qwen)   write each byte as one printable character
    those with a byte fallback (Llama 2, Gemma)      have tokens <0x00> to <0xFF> for what no other token covers

    A vocabulary of another kind has none. `tokenizer` is one of the library `tokenizers`.
    """
    described = b"" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
    spelled = _spelling(set(_TYPE.findall(described.decode())))
    spellings = ((token, spelled(piece)) for piece, token in tokenizer.get_vocab(with_added_tokens=False).items())
    return {token: raw for token, raw in spellings if REPLACEMENT in raw.decode(errors="replace")}


def _spelling(decoders: set[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in decoders:
        # Added tokens are written as they are, and may have characters that stand for no byte.
        return lambda piece: bytes(_BYTE_OF[each] for each in piece) if set(piece) <= _BYTE_OF.keys() else b""
    return _fallback if "ByteFallback" in decoders else lambda piece: b""


def _fallback(piece: str) -> bytes:
    match = _FALLBACK.fullmatch(piece)
    return b"" if match is None else bytes.fromhex(match[1])
