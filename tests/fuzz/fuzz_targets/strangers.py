"""Files and texts of strangers that are more than data: what would make sizes, programs and grammars of them."""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fuzz_targets.target import FuzzTarget
from outrider_drafters.checkpoints.hf_config import causal_config
from outrider_drafters.contracts.schema_compiler import SchemaCompiler
from outrider_drafters.readers.chat_template import ChatTemplate
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import Refusal, UsageError
from outrider_server.security.keys import digest_of, read_keys

_ALLOCATED = 64 * 2**20  # whatever sizes an input names
_CHAT = [{"role": "user", "content": "Who am I?"}, {"role": "assistant", "content": "I do not know."}]


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="outrider-fuzz-strangers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _written(name: str) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        (_folder() / name).write_bytes(data)
        return _folder() / name

    return write


def _config(file: Path) -> None:
    causal_config(file.parent)


def _config_seeds() -> dict[str, bytes]:
    whole = json.loads((target_dir() / "config.json").read_bytes())
    several = {
        "whole": whole,
        "layers": whole | {"num_hidden_layers": 10**9, "layer_types": ["full_attention"]},
        "kernel": whole | {"_attn_implementation": "somebody/kernel", "auto_map": {"AutoConfig": "x--y.Z"}},
        "rope": whole | {"rope_parameters": [1], "rope_theta": "x", "head_dim": -1},
        "parts": {"model_type": "llava", "text_config": whole, "vision_config": 7},
        "labels": whole | {"num_labels": 10**12, "dtype": "nothing", "per_layer_config": {"0": {"hidden_size": 2}}},
    }
    return {name: json.dumps(one).encode() for name, one in several.items()} | {"deep": b"[" * 3000}


def _read_gguf(file: Path) -> None:
    GgufFile.read(file)


def _gguf_seeds() -> dict[str, bytes]:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def header(tensors: int, *values: bytes) -> bytes:
        return struct.pack("<IIQQ", 0x46554747, 3, tensors, len(values)) + b"".join(values)

    architecture = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    array = text("a") + struct.pack("<IIQ", 9, 0, 2**60)
    nested = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 500
    tensor = text("output.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    return {
        "empty": header(0, architecture),
        "array": header(0, architecture, array),
        "nested": header(0, architecture, nested),
        "tensor": (header(1, architecture) + tensor).ljust(160, b"\0") + bytes(64),
        "tensors": header(10**6, architecture),
    }


@cache
def _compiler() -> SchemaCompiler:
    return SchemaCompiler(target_dir(), 2048, [1])


def _schema_seeds() -> dict[str, bytes]:
    several = {
        "object": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
        "patterns": {"allOf": [{"type": "string", "pattern": f".*a{n}.*b{n}.*"} for n in range(3)]},
        "repeated": {"type": "string", "pattern": "(a{100}){100}", "maxLength": 9},
        "several": {"anyOf": [{"$ref": "#/$defs/a"}, {"enum": [1, "b", None]}], "$defs": {"a": {"const": {}}}},
        "numbers": {"type": "number", "multipleOf": 99.5, "exclusiveMaximum": 1e9},
        "lists": {"type": "array", "prefixItems": [{}], "items": {"format": "date"}, "minItems": 3},
    }
    return {name: json.dumps(one).encode() for name, one in several.items()}


def _template_seeds() -> dict[str, bytes]:
    return {
        "plain": b"{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}",
        "loops": b"{% for a in range(999) %}{% for b in range(9) %}{{ loop.index }}{% endfor %}{% endfor %}",
        "power": b"{{ (9**(9**9))|string|length }}",
        "attributes": b"{{ messages.__class__.__mro__ }}",
        "raise": b"{{ raise_exception('no') }}{% set x = namespace(a=1) %}{% macro f(x) %}{{ f(x) }}{% endmacro %}",
    }


def _key_seeds() -> dict[str, bytes]:
    entry = f'[[key]]\nid = "phone"\nsha256 = "{digest_of("x").hex()}"\n'
    return {
        "whole": f'{entry}scopes = ["session"]\nsessions = 4\nexpires = 2027-01-31T00:00:00Z\ncomment = "a"\n'.encode(),
        "twice": (entry * 2).encode(),
        "strange": b"[key]\nid = 3\n[[other]]\nsessions = true\nexpires = 07:00:00\n",
        "deep": b"key = " + b"[" * 500,
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


TARGETS = (
    FuzzTarget(
        "config",
        _config,
        _config_seeds,
        refusals=(UsageError,),
        bound=lambda data: _ALLOCATED,
        prepare=_written("config.json"),
    ),
    FuzzTarget(
        "gguf",
        _read_gguf,
        _gguf_seeds,
        refusals=(UsageError,),
        bound=lambda data: _ALLOCATED,
        prepare=_written("model.gguf"),
    ),
    FuzzTarget(
        "schema", lambda data: _compiler().compile(_text(data)) and None, _schema_seeds, refusals=(Refusal,), bound=None
    ),
    FuzzTarget(
        "template",
        lambda data: ChatTemplate({}).render(_text(data), _CHAT) and None,
        _template_seeds,
        refusals=(UsageError,),
        bound=None,
    ),
    FuzzTarget(
        "keys-file",
        lambda file: read_keys(file) and None,
        _key_seeds,
        refusals=(UsageError,),
        bound=None,
        prepare=_written("keys.toml"),
    ),
)
