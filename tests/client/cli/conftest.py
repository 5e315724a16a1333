"""A tiny target that reads and writes text, and a server of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from outrider_server import Server, ServerConfig

from ..gateway.in_thread import InThread

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    """The tiny golden pair, with a tokenizer of one token per byte."""
    golden = Path(__file__).parents[2] / "data" / "golden"
    target = tmp_path_factory.mktemp("target")
    shutil.copytree(golden / "target_tiny", target, dirs_exist_ok=True)
    alphabet = {char: n for n, char in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(alphabet, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(target)
    return target, golden / "moa_tli0" / "drafter"


@pytest.fixture(scope="module")
def server(models):
    config = ServerConfig(str(models[0]), (str(models[1]),), port=0)
    with InThread(lambda: Server.build(config)) as server:
        yield server
