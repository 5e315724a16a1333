"""A tiny target that reads and writes text, and a server of it in a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

STARTS_IN_S = 120
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


class ServerProcess:
    """`outrider-server serve` on a port that stays the same over restarts."""

    def __init__(self, models: tuple[Path, Path], folder: Path) -> None:
        self._command = [sys.executable, "-c", "from outrider_server.cli.app import main; main()", "serve"]
        self._command += ["--target", str(models[0]), "--drafter", str(models[1])]
        self._folder = folder
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.port = unused.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self._folder / "ready"
        ready.unlink(missing_ok=True)
        with open(self._folder / "log", "ab") as log:
            options = ["--port", str(self.port), "--ready-file", str(ready)]
            self._process = subprocess.Popen([*self._command, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + STARTS_IN_S
        while not ready.exists():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    process = ServerProcess(models, tmp_path_factory.mktemp("server"))
    process.start()
    yield process
    process.kill()
