"""The bytes of tokens that are pieces of characters."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers import models as token_models

from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_client.text.detokenizer import token_fragments

TEXTS = ("🐱", "naïve café", "日本語", "\ufffd", "plain")


def test_those_of_a_byte_level_vocabulary():
    models = LocalModels.load(ClientConfig(target="embedded", drafter="none"))
    fragments = models.text.fragments
    for text in TEXTS:
        tokens = models.encode(text, raw=True)
        assert b"".join(fragments.get(token, models.decode([token]).encode()) for token in tokens) == text.encode()
    assert all("\ufffd" in models.decode([token]) for token in fragments)
    whole = [token for token in range(models.vocab_size) if token not in fragments]
    assert not any("\ufffd" in models.decode([token]) for token in whole)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_those_of_a_byte_fallback(kind):
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a"]
    if kind == "bpe":
        model = token_models.BPE({piece: token for token, piece in enumerate(pieces)}, [], byte_fallback=True)
    else:
        model = token_models.Unigram([(piece, 0.0) for piece in pieces], 0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fragments = token_fragments(tokenizer)
    assert b"".join(fragments[token] for token in tokenizer.encode("🐱").ids) == "🐱".encode()
    assert fragments.keys() == {1 + byte for byte in range(0x80, 0x100)}


def test_other_vocabularies_have_none():
    assert token_fragments(Tokenizer(token_models.WordLevel({"\u0130": 0, "a": 1}, "a"))) == {}
