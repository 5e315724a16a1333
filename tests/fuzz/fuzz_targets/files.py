"""Files that `outrider pull` brings from a server, as the client then reads them."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fuzz_targets.target import FuzzTarget, by_length
from outrider_client.models.plain_tokenizer import PlainTokenizer, plain_tokenizer
from outrider_client.pull.partial_bundle import check_bundle
from outrider_drafters.checkpoints import bundle as edge
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import Refusal, UsageError

_TEXT = "An outrider rides ahead 3 times\u2026 \u00e4\U0001f40e"
_DIGESTED = 512 * 1024  # of a file at once, and what hashlib holds beside it
_CUT = b"\n--\n"  # between the two files of a tokenizer


@cache
def _folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"outrider-fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _manifest() -> BundleManifest:
    for name in ("config.json", "model.safetensors"):
        (_folder("bundle") / name).write_bytes(b"{}")
    files = tuple(BundleFile(name, 2, bytes(32)) for name in ("bundle.json", "config.json", "model.safetensors"))
    return BundleManifest("t", "ab", "cd", "tap", "lookup", "int8", files)


def _write_bundle(data: bytes) -> Path:
    _manifest()
    (_folder("bundle") / edge.MANIFEST).write_bytes(data)
    edge._checked.cache_clear()  # files change faster here than the clock by which it knows them
    return _folder("bundle")


def _bundle(folder: Path) -> None:
    check_bundle(folder, _manifest())


def _bundle_seeds() -> dict[str, bytes]:
    _manifest()
    tap = {"fingerprint": "tap", "family": "lookup", "width": 0}
    told = edge.Bundle(
        "int8", "t", "ab", "cd", "lookup", {"ngram": 3, "target_layers": [1, 2]}, tap, {}, {"by": "test"}
    )
    path = _folder("bundle") / edge.MANIFEST
    path.unlink(missing_ok=True)
    told.write(_folder("bundle"))
    whole = json.loads(path.read_bytes())
    several = {
        "whole": whole,
        "listed-drafter": whole | {"drafter": ["drafter"]},
        "no-options": whole | {"options": []},
        "strange-options": whole | {"options": {"tli": "a", "rope_theta": -1}},
        "strange-files": whole | {"files": {"../x": {"size_bytes": 1, "blake2b": ""}, "\0": 1}},
        "strange-marks": whole | {"files": {"config.json": {"size_bytes": "2", "blake2b": 3}}},
        "no-tap": whole | {"tap": None},
        "newer": whole | {"version": 2},
    }
    seeds = {name: json.dumps(one).encode() for name, one in several.items()}
    return seeds | {"deep": b"[" * 3000, "no-json": b"{", "number": b"1e999"}


def _write_tokenizer(data: bytes) -> Path:
    config, _, tokenizer = data.partition(_CUT)
    folder = _folder("tokenizer")
    (folder / "tokenizer_config.json").write_bytes(config)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return folder


def _check_tokenizer(tokenizer: PlainTokenizer) -> None:
    try:
        ids = tokenizer.encode(_TEXT)
        tokenizer.encode_chat([{"role": "user", "content": _TEXT}])
    except UsageError:
        return
    assert all(isinstance(token, int) for token in ids)
    assert isinstance(tokenizer.decode([*ids, 2**31]), str)


def _tokenizer_seeds() -> dict[str, bytes]:
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            | {"special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "h": 2, "ah": 3}, "merges": [["a", "h"]]},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "model_max_length": 9}
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}\n{% endfor %}"
    configs = {
        "plain": config,
        "template": config | {"chat_template": template},
        "refuses": config | {"chat_template": "{{ raise_exception('no') }}"},
        "not-iterable": config | {"additional_special_tokens": 5},
        "other-class": config | {"tokenizer_class": "LlamaTokenizer"},
    }
    seeds = {name: json.dumps(one).encode() + _CUT + json.dumps(tokenizer).encode() for name, one in configs.items()}
    return seeds | {"no-tokenizer": json.dumps(config).encode(), "deep": b"[" * 3000}


def _bundle_bound(data: bytes) -> int:
    return by_length(data) + _DIGESTED


_REFUSALS = (Refusal, UsageError)
TARGETS = (
    FuzzTarget("bundle-file", _bundle, _bundle_seeds, refusals=_REFUSALS, bound=_bundle_bound, prepare=_write_bundle),
    FuzzTarget("tokenizer-file", plain_tokenizer, _tokenizer_seeds, _check_tokenizer, (), None, _write_tokenizer),
)
