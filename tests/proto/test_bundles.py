"""Manifests of edge bundles: what is valid, and that no server can name a file elsewhere."""

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto import verifier_pb2 as pb
from outrider_proto.bundles import (
    MAX_BUNDLE_BYTES,
    BundleFile,
    BundleManifest,
    bundle_id,
    manifest_from_proto,
    manifest_to_proto,
)
from outrider_proto.errors import Violation

DIGEST = bytes(range(32))
NEEDED = ("bundle.json", "config.json", "model.safetensors")


def manifest(*names: str, **changes) -> BundleManifest:
    files = tuple(BundleFile(name, 5, DIGEST) for name in (*NEEDED, *names))
    told = {
        "target_name": "t",
        "target_fingerprint": "ab",
        "tokenizer_fingerprint": "none",
        "tap": "",
        "drafter": "moa",
    }
    return BundleManifest(**told | {"weights": "int8", "files": files} | changes)


def test_round_trip():
    told = manifest("tokenizer.json", "drafter/config.json", drafters=("moa",), weights_on_offer=("int8", "int4"))
    assert manifest_from_proto(manifest_to_proto(told)) == told


def test_the_id_is_of_the_content():
    assert manifest().bundle_id == manifest(drafter="eagle2").bundle_id != manifest("vocab.json").bundle_id
    assert bundle_id([BundleFile("config.json", 5, DIGEST)]) != bundle_id([BundleFile("config.json", 6, DIGEST)])


@pytest.mark.parametrize("name", [
    "", ".", "..", "/etc/passwd", "../config.json", "drafter/../config.json", "drafter/drafter/config.json", "drafter",
    ".bashrc", "drafter/.json", "C:\\config.json", "drafter\\config.json", "config.json\0", "config.json\n",
    "con fig.json",    "tokenizer.json.part", "model.safetensors.index.json", "drafter/model.safetensors.index.json",
    "pytorch_model.bin",
    "tokenizer/config.json", "tokenizer.", "tokenizer" + "x" * 100, "drafter/tokenizer.model", "ｃonfig.json", "run.py",
    "tokenizer.py", "tokenizer.pkl", "vocab.pkl", "vocab.so", "chat_template.py", "tokenizer",
])  # fmt: skip
def test_names_that_no_bundle_has(name):
    with pytest.raises(Violation, match="not a file of a bundle"):
        BundleFile(name, 5, DIGEST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": ()}, "lacks bundle.json"),
        ({"files": manifest().files * 2}, "each once"),
        ({"files": (*manifest("tokenizer_a.json").files, BundleFile("tokenizer_A.json", 5, DIGEST))}, "each once"),
        (
            {"files": tuple(BundleFile(f"drafter/{n}.json", 5, DIGEST) for n in range(70)) + manifest().files},
            "at most 64",
        ),
        (
            {"files": (*manifest().files, BundleFile("drafter/model.safetensors", MAX_BUNDLE_BYTES, DIGEST))},
            "has 10995",
        ),
        ({"target_name": "x" * 300}, "above 256 characters"),
        ({"drafter": "\x1b[2J"}, "not a single line"),
        ({"drafters": ("x",) * 65}, "more than 64 bundles"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_manifest(change, message):
    with pytest.raises(Violation, match=message):
        manifest(**change)


@pytest.mark.parametrize(
    ("size", "digest", "message"),
    [(-1, DIGEST, "-1 bytes"), (2**29, DIGEST, "need 0 to 268435456"), (5, DIGEST[1:], "digest of 31 bytes")],
)
def test_sizes_and_digests(size, digest, message):
    with pytest.raises(Violation, match=message):
        BundleFile("config.json", size, digest)


def test_an_id_that_is_not_the_files():
    message = manifest_to_proto(manifest())
    message.bundle_id = "0" * 64
    with pytest.raises(Violation, match="claims the id"):
        manifest_from_proto(message)


PARTS = st.sampled_from(
    ["drafter", "tokenizer", "config.json", "model.safetensors", "..", ".", "/", "\\", "", "C:", "x"]
)
NAMES = st.one_of(
    st.text(max_size=40), st.lists(PARTS, max_size=5).map("/".join), st.lists(PARTS, max_size=4).map("".join)
)
FILES = st.builds(
    pb.BundleFile, name=NAMES, size_bytes=st.integers(0, 2**64 - 1), sha256=st.binary(min_size=30, max_size=34)
)


@given(st.lists(FILES, max_size=6), st.booleans())
def test_whatever_passes_stays_inside(files, honest):
    """Of names put together at random, beside a proper bundle's."""
    message = manifest_to_proto(manifest())
    message.files.extend(files)
    if honest:
        taken = [BundleFile(f.name, f.size_bytes, f.sha256) for f in message.files if _passes(f)]
        del message.files[:]
        message.files.extend(pb.BundleFile(name=f.name, size_bytes=f.size_bytes, sha256=f.sha256) for f in taken)
        message.bundle_id = bundle_id(taken)
    try:
        passed = manifest_from_proto(message)
    except Violation:
        return
    assert passed.size_bytes <= MAX_BUNDLE_BYTES
    for file in passed.files:
        for path in (PurePosixPath(file.name), PureWindowsPath(file.name)):
            assert not path.is_absolute()
            assert not path.drive
            assert path.parts[:-1] in ((), ("drafter",))
            assert not any(part.startswith(".") for part in path.parts)


def _passes(file: pb.BundleFile) -> bool:
    try:
        return bool(BundleFile(file.name, file.size_bytes, file.sha256))
    except Violation:
        return False
