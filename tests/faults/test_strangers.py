"""The table of hostile inputs: what, where it enters, what is answered, and the bounds of seconds and MiB.

A new input is a line in INPUTS, a new entrance one in entrances.py. All rows of a group share a child process.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WAIT_S = 300  # no group takes that long; it only ends one that hangs


@dataclass(frozen=True)
class Hostile:
    """`make` is what enters, or makes the file that does. `answer`: a pattern of the whole answer."""

    name: str
    entrance: str
    make: bytes | Callable[[Path], object]
    answer: str
    seconds: float = 4.0  # of the processor, with what is imported late
    mebibytes: int = 400
    suffix: str = ""
    group: str = "files"

    def write(self, file: Path) -> None:
        """Make the file."""
        if isinstance(self.make, bytes):
            file.write_bytes(self.make)
        else:
            self.make(file)


def packed(pack: Callable[[bytes], bytes], text: bytes, mebibytes: int) -> Callable[[Path], object]:
    """A file that unpacks to far more than it is."""
    return lambda file: file.write_bytes(pack(text * (mebibytes * 2**20 // len(text))))


def sparse(file: Path) -> None:
    """A large file that takes no room."""
    file.touch()
    os.truncate(file, 2**30)


def device(file: Path) -> None:
    """A file that never ends."""
    file.symlink_to("/dev/zero")


GARBAGE = bytes(range(256)) * 64
NO_FILES = {"a device": device, "a pipe": os.mkfifo, "a folder": Path.mkdir}
JSON = {
    "nothing": b"",
    "garbage": GARBAGE,
    "deep": b"[" * 100_000,
    "a long number": b"[" + b"1" * 5000 + b"]",
    "cut off": b'{"a": [1, 2',
    **NO_FILES,
}
TOML = {
    "garbage": GARBAGE,
    "deep": b"a = " + b"[" * 100_000,
    "a long number": b"a = " + b"1" * 5000,
    "cut off": b"[a",
    **NO_FILES,
}
TEXT = {"garbage": GARBAGE, "a device": device, "a folder": Path.mkdir}
TRACE = {"nothing": b"", "garbage": GARBAGE, "one line": b"1" * 3_000_000, **NO_FILES}
FILES = {
    "outrider generate --file": (".txt", TEXT),
    "outrider generate --private": (".txt", TEXT),
    "outrider generate --json-schema": (".json", JSON),
    "outrider describe --key-file": (".key", TEXT | {"a pipe": os.mkfifo}),
    "outrider describe --ca": (".pem", TEXT | {"a pipe": os.mkfifo}),
    "outrider gateway --api-key-file": (".key", TEXT | {"a pipe": os.mkfifo}),
    "outrider config": (".toml", TOML),
    "outrider-server config": (".toml", TOML),
    "outrider-server keys list": (".toml", TOML),
    "outrider-netsim show": (".toml", TOML),
    "outrider-netsim trace check": (".csv", TRACE),
    "outrider-netsim fit": (".csv", TRACE),
    "outrider-models train --data": (".jsonl", JSON),
    "outrider-models train --settings": (".toml", TOML),
    "outrider-models draft-vocab": (".jsonl", JSON),
    "outrider-bench show": (".json", JSON),
    "outrider-bench network --config": (".toml", TOML),
    "outrider-bench drafters --questions": (".jsonl", JSON),
    "outrider-bench humaneval --problems": (".jsonl", JSON),
    "outrider-lab virtual": (".json", JSON),
}
REFUSED = r"exit 2: outrider[^\n]*hostile[^\n]*\n"


UINT8, INT32, STRING, ARRAY = 0, 5, 8, 9  # of values in a GGUF header


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(num_tensors: int, num_keys: int, *values: bytes) -> bytes:
    """A GGUF file's, with whatever follows it; its first key is there."""
    first = text("general.architecture") + struct.pack("<I", STRING) + text("llama")
    return b"".join((b"GGUF", struct.pack("<IQQ", 3, num_tensors, num_keys), first, *values))


def array(kind: int, count: int, entries: bytes = b"") -> bytes:
    return text("a") + struct.pack("<IIQ", ARRAY, kind, count) + entries


def tensor(name: str, *sizes: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, 0)


NESTED = struct.pack("<IQ", ARRAY, 1) * 5000 + bytes(64)
GGUF = {
    "an array of 2^60 bytes": (header(0, 2, array(UINT8, 2**60)), r"arrays of 1,152,921,504,"),
    "an array of ten million": (header(0, 2, array(UINT8, 10**7, bytes(10**7))), "arrays of 10,000,000"),
    "several arrays": (header(0, 4, array(UINT8, 2**20, bytes(2**20)) * 3), "arrays of 3,145,728|Dup"),
    "an array longer than the file": (header(0, 2, array(INT32, 2**20)), "4,194,304 bytes at"),
    "strings beyond the end": (header(0, 2, array(STRING, 2**20, bytes(80))), "strings, cut short"),
    "a string beyond the end": (header(0, 2, array(STRING, 1, struct.pack("<Q", 2**63))), "cut short"),
    "arrays in arrays": (header(0, 2, array(ARRAY, 1, NESTED)), "an array of arrays"),
    "an array of no type": (header(0, 2, array(99, 1, bytes(8))), "is not a valid GGUFValueType"),
    "500,000 tensors": (header(500_000, 1, *(tensor(f"t{i}", 1) for i in range(1000))), "500,000 ten"),
    "a million keys": (header(0, 10**6), "1,000,000 keys"),
    "a key of a terabyte": (header(0, 2, struct.pack("<Q", 2**40)), "a text of 1,099,511,627,776 bytes"),
    "a tensor of many dimensions": (header(1, 1, text("t"), struct.pack("<I", 2**31)), "2,147,483,648 dim"),
    "a tensor beyond the end": (header(1, 1, tensor("t", 2**40), bytes(64)), "bytes at"),
    "a tensor of more than a number holds": (header(1, 1, tensor("t", 2**62, 8), bytes(64)), "reshape|bytes"),
    "garbage": (GARBAGE, ""),
}


def many(inner: str) -> str:
    return f"{{% for a in range(99999) %}}{inner}{{% endfor %}}"


TEMPLATES = {
    "loops": (many(many(many(""))), "takes more than 2 s"),
    "a number": ("{{ (9 ** (9 ** 9)) | string }}", "takes more than 2 s"),
    "a string": ("{{ ('a' * 3000000000) | length }}", "takes more than 256 MiB"),
    "a padded string": ("{{ ''.ljust(3000000000) | length }}", "takes more than 256 MiB"),
    "an indented string": ("{{ 'a\na' | indent(3000000000) | length }}", "takes more than 256 MiB"),
    "a formatted string": ("{{ '%3000000000d' | format(1) | length }}", "takes more than 256 MiB"),
    "a list": ("{{ ([0] * 1000000000) | length }}", "takes more than 256 MiB"),
    "a long text": (many("1234"), "it writes 399,996 characters, more than"),
    "a macro that calls itself": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
    "a long range": ("{% for a in range(1000000000) %}{% endfor %}", "Range too big"),
    "10 MB of it": ("{# #}" * 2_000_000, "it has 10,000,000 characters itself: more than 262,144"),
    "1,000 ifs": ("{% if 1 %}" * 1000 + "{% endif %}" * 1000, "."),
    "100,000 brackets": ("{{ " + "[" * 100_000, "."),
    "100,000 signs": ("{{ " + "-" * 100_000 + "1 }}", "."),
    "lines": ("{{ raise_exception('no\nno ' * 999) }}", "[no ]{500}$"),
    "classes": ("{{ messages.__class__.__mro__ }}", "."),
    "a change of the chat": ("{{ messages.append(1) }}", "."),
    "a sign before a list": ("{{ +['x'] }}", "."),
    "a division by nothing": ("{{ 1 // 0 }}", "."),
    "a slice by letters": ("{{ messages[0].content['a':] }}", "."),
    "digits": ("{{ " + "9" * 5000 + " }}", "."),
    "ifs without end": ("{% if 1 %}" * 60, "."),
}


def splits(pattern: str) -> dict:
    parts = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, BYTES]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def replaces(content: str, pattern: dict, times: int = 1) -> dict:
    replacements = [{"type": "Replace", "pattern": pattern, "content": content}] * times
    return {"normalizer": {"type": "Sequence", "normalizers": replacements}}


def added(length: int, *, special: bool) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"added_tokens": [{"id": 9, "content": "a" * length, "special": special, **flags}]}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LONGER = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 999}]
TOKENIZERS = {  # parts of a tokenizer.json
    "a long text": (replaces("a" * 10**6, {"String": "a"}), "makes a text 1,000,000 times as long"),
    "one by the other": (replaces("aaaaaaaa", {"String": "a"}, 8), "makes a text 16,777,216 times"),
    "between letters": (replaces("aaaaaaaa", {"Regex": ""}, 8), "makes a text 43,046,721 times"),
    "in front": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "its normalizer makes a text 1,000,000"),
    "afterwards": ({"decoder": {"type": "Sequence", "decoders": LONGER}}, "its decoder makes a text 999 times"),
    "many steps": (splits("(?:a|aa)+[!-/]"), "a pattern in it takes too many steps"),
    "no pattern": (splits("("), "no tokenizer that transformers can read"),
    "a long token": (added(2000, special=False), "2,000 characters"),
    "a long special token": (added(9000, special=True), "."),
}
TARGETS = {  # entries of a target's config.json
    "a million layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000: no model has so many"),
    "layers": ({"num_hidden_layers": 9_999}, "describes a model with more .* than its files can hold"),
    "rows": ({"vocab_size": 10**9}, "more weights than its files can hold"),
    "columns": ({"intermediate_size": 10**8}, "more weights than its files can hold"),
    "no heads": ({"num_attention_heads": 0}, "config.json"),
    "a function for a type": ({"dtype": "compile"}, "dtype=compile: need the name of a type"),
    "a list for a type": ({"torch_dtype": ["float32"]}, "need the name of a type"),
    "no architecture": ({"model_type": "nothing"}, "model_type=nothing: no architecture that transformers knows"),
    "a list for an architecture": ({"model_type": ["llama"]}, "no architecture that transformers knows"),
}
BUNDLES = {  # entries of a bundle.json
    "another's drafter": ({"drafter": "owner/model"}, "a drafter outside of it: 'owner/model'"),
    "a place for a drafter": ({"drafter": "/etc"}, "a drafter outside of it: '/etc'"),
    "a list for a drafter": ({"drafter": ["drafter"]}, "need texts for"),
    "a device for a vocabulary": ({"options": {"draft_vocab": "/dev/zero"}}, "option draft_vocab='/dev/zero': need a"),
    "a file for a vocabulary": ({"options": {"draft_vocab": "tokens.json"}}, "options name no files"),
    "a list for a vocabulary": ({"options": {"draft_vocab": ["all"]}}, "options name no files"),
    "a family elsewhere": ({"options": {"family": "../moa"}}, "options name no files"),
    "a list for options": ({"options": [1]}, "need objects for"),
    "features without a name": ({"tap": {}}, "fingerprint"),
    "a terabyte of rows": ({"sizes": {"vocab": 10**12}}, "its tensors hold 2048 rows"),
    "a text for rows": ({"sizes": {"vocab": "x"}}, "vocab='x': need a whole number"),
    "another version": ({"version": 9}, "not an edge bundle of version 1"),
    "a file elsewhere": ({"files": {"../x": {"size_bytes": 1, "blake2b": ""}}}, "lies outside"),
}


def all_of(patterns: Iterable[str]) -> dict:
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


AMBIGUOUS = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/s"}, "maxItems": most} for most in range(5, 305)]}
SCHEMAS = {
    "patterns that all hold": all_of(f".*a{i}.*b{i}.*" for i in range(16)),
    "patterns with gaps": all_of(f"^.*a.{{{i}}}b.*$" for i in range(1, 40)),
    "a large divisor": {"type": "integer", "multipleOf": 999983},
    "repeated repeats": {"type": "string", "pattern": "^(a{1000}){1000}$"},
    "a long repeat": {"type": "string", "pattern": "^a{100000}$"},
    "a long constant": {"const": "x" * 900_000},
    "ambiguous nesting": {"$defs": {"s": AMBIGUOUS}, "$ref": "#/$defs/s"},
    "itself": {"$ref": "#"},
    "unfinished nesting": {"type": "string", "pattern": "(a?" * 200 + ")" * 200},
    "deep": b'{"items":' * 20_000 + b"{}" + b"}" * 20_000,
}


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    """A request; `length` is what it says that its body has."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close"]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def constrained(constraint: object) -> bytes:
    """A request for an answer in JSON."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": constraint}}
    asked = {"model": "outrider", "messages": [{"role": "user", "content": "x"}], "response_format": form}
    return post("/v1/chat/completions", json.dumps(asked).encode())


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"
HALVES = {  # of requests, and what a gateway answers
    "nothing": (b"", "408"),
    "a byte": (b"G", "408"),
    "headers that do not end": (GET + b"X-A: ", "408"),
    "a body that does not end": (post("/v1/completions", b"{", 9), "408"),
    "chunks that do not end": (CHUNKED, "400|408"),
    "a header of 1 MB": (GET + b"X-A: " + b"x" * 2**20, "4.."),
    "ten thousand headers": (GET + b"X: y\r\n" * 10**4, "4.."),
    "a TLS hello": (bytes.fromhex("16030100f8010000f40303") + bytes(240), "400|408"),
    "garbage": (GARBAGE, "400"),
    "a body of a terabyte": (post("/v1/completions", b"{", 2**40), "413"),
    "JSON without end": (post("/v1/chat/completions", b"[" * 100_000), "400"),
    "a number of many digits": (post("/v1/completions", b'{"prompt": ' + b"1" * 5000 + b"}"), "400"),
    "a schema of patterns that all hold": (constrained(SCHEMAS["patterns that all hold"]), "400"),
    "a schema of a long repeat": (constrained(SCHEMAS["a long repeat"]), "400"),
}
REPLIES = {  # of a server, to every call
    "nothing": b"",
    "garbage": GARBAGE,
    "zeros": bytes(1000),
    "32 MiB": bytes(2**25),
    "a name of 1 MiB": b"\x0a\x80\x80\x40" + b"x" * 2**20,
}

command = partial(Hostile, answer=REFUSED)
call = partial(Hostile, group="calls")


def refused(group: str, entrance: str, rows: dict[str, tuple[object, str]], **more) -> list[Hostile]:
    """Rows that are refused in a line: bytes, a text, or what is JSON; and the reason."""

    def data(content: object) -> bytes:
        if isinstance(content, bytes):
            return content
        return (content if isinstance(content, str) else json.dumps(content)).encode()

    return [
        Hostile(name, entrance, data(content), rf"refused: [^\n]*({reason})[^\n]*", group=group, **more)
        for name, (content, reason) in rows.items()
    ]


INPUTS = [
    command("a bomb of gzip", "outrider-netsim trace check", packed(gzip.compress, b"1" * 2**20, 200), suffix=".gz"),
    command(
        "a bomb of xz",
        "outrider-models train --data",
        packed(partial(lzma.compress, preset=0), b"\0", 300),
        suffix=".xz",
        seconds=10,
        mebibytes=1200,
    ),
    command("a bomb of gzip", "outrider-lab virtual", packed(gzip.compress, b" ", 200), suffix=".gz"),
    command("bad deflate", "outrider-lab virtual", gzip.compress(b"[]")[:10] + b"\xff" * 9, suffix=".gz"),
    command(
        "another format", "outrider-lab virtual", b'{"format": 1}', answer=r"exit 2: [^\n]*outrider-lab rec[^\n]*\n"
    ),
    command("a report of text", "outrider-bench show", b'{"made_by": {"study": "load"}, "rows": "x"}', suffix=".json"),
    *refused("readers", "a GGUF file", GGUF, suffix=".gguf", mebibytes=40),
    *refused("readers", "a chat template", TEMPLATES),
    *refused("readers", "a tokenizer.json", TOKENIZERS),
    *refused("readers", "a target's config.json", TARGETS),
    *refused("readers", "a bundle.json", BUNDLES),
    *(
        Hostile(name, "a draft history", make, r"told: [^\n]*(damaged|not a regular file|over 4 times)[^\n]*")
        for name, make in {"garbage": GARBAGE, "a gigabyte": sparse, **NO_FILES}.items()
    ),
    *refused("readers", "a JSON schema", {name: (schema, "json_schema: ") for name, schema in SCHEMAS.items()}),
    *(
        call(name, "a server's session", json.dumps(SCHEMAS[name]).encode(), r"refused: json_schema: [^\n]*")
        for name in ("patterns that all hold", "a large divisor", "repeated repeats", "ambiguous nesting")
    ),
    call("a name of 3.9 MiB", "a server's health", b"\x0a" + b"\x80\x80\xf4\x01" + b"x" * 3_997_696, r"[A-Z_]+: .*"),
    call("garbage", "a server's unary call", b"\xff\xff\xff\x07x", r"INVALID_ARGUMENT: [^\n]*"),
    *(call(name, "a gateway", data, rf"(?s)HTTP/1.1 ({status}) .*") for name, (data, status) in HALVES.items()),
    *(
        call(f"a hundred times {name}", entrance, HALVES[name][0], r"served, with (-\d+|[0-4]?\d) threads more")
        for entrance in ("a gateway's callers", "a metrics port's callers")
        for name in ("nothing", "headers that do not end", "a TLS hello")
    ),
    *(
        call(name, f"a client's {what}", data, r"exit [34]: outrider[^\n]*\n")
        for what in ("describe", "generate", "pull")
        for name, data in REPLIES.items()
    ),
]
ROWS = [
    *INPUTS,
    *(
        command(kind, entrance, make, suffix=suffix)
        for entrance, (suffix, kinds) in FILES.items()
        for kind, make in kinds.items()
    ),
]


def _faults(row: Hostile, answer: str, seconds: float, mebibytes: int) -> list[str]:
    where = f"{row.name}, to {row.entrance}"
    faults = [] if re.fullmatch(row.answer, answer) else [f"{where}: {answer[:300]!r}"]
    if seconds > row.seconds:
        faults.append(f"{where}: {seconds:.1f} s: at most {row.seconds}")
    if mebibytes > row.mebibytes:
        faults.append(f"{where}: {mebibytes} MiB: at most {row.mebibytes}")
    return faults


@pytest.mark.parametrize("group", sorted({row.group for row in ROWS}))
def test_hostile_inputs_are_answered_within_bounds(group):
    command = [sys.executable, str(HERE / "entrances.py"), group]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    rows = [row for row in ROWS if row.group == group]
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    faults = [fault for row, (_, *answer) in zip(rows, answers, strict=False) for fault in _faults(row, *answer)]
    assert not faults
    assert len(answers) == len(rows), f"{rows[len(answers)]} ended the process: {ended.stderr[-2000:]}"
