"""The bytes of tokens that are pieces of a character, which decoding alone would turn into U+FFFD.

byte-level vocabularies (GPT-2, Llama 3, Qwen)   write each byte as one printable character
those with a byte fallback (Llama 2, Gemma)      have tokens <0x00> to <0xFF> for what no other token covers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outrider_client.text.detokenizer import REPLACEMENT
from outrider_drafters.readers.config import read_json

TokenFragments = Mapping[int, bytes]  # by token id

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SHOWN_AS_THEMSELVES = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_OTHERS = (byte for byte in range(256) if byte not in _SHOWN_AS_THEMSELVES)
# GPT-2's table: bytes that print nothing take the characters from U+0100 on, in order.
_BYTE_OF = {chr(byte): byte for byte in _SHOWN_AS_THEMSELVES} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}


def read_token_fragments(file: Path) -> TokenFragments:
    """Read them from a tokenizer.json; there are none for a vocabulary of another kind. Raises UsageError."""
    described = read_json(file)
    spelled = _spelling(set(_decoders(described.get("decoder"))))
    spellings = ((token, spelled(piece)) for piece, token in _vocabulary(described.get("model") or {}))
    return {token: raw for token, raw in spellings if REPLACEMENT in raw.decode(errors="replace")}


def _decoders(described: Any) -> Iterator[str]:  # Any: whatever JSON holds
    if isinstance(described, dict):
        yield str(described.get("type"))
        for inner in described.get("decoders") or ():
            yield from _decoders(inner)


def _spelling(decoders: set[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in decoders:
        # Added tokens are written as they are, and may have characters that stand for no byte.
        return lambda piece: bytes(_BYTE_OF[each] for each in piece) if set(piece) <= _BYTE_OF.keys() else b""
    return _fallback if "ByteFallback" in decoders else lambda piece: b""


def _fallback(piece: str) -> bytes:
    match = _FALLBACK.fullmatch(piece)
    return b"" if match is None else bytes.fromhex(match[1])


def _vocabulary(model: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Every piece with its token: BPE lists them by piece, Unigram in the order of tokens, with scores."""
    vocab = model.get("vocab") or {}
    return vocab.items() if isinstance(vocab, dict) else ((piece, token) for token, (piece, _) in enumerate(vocab))
