"""What a server says of its edge bundle."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from fuzz_targets.target import FuzzTarget
from outrider_proto import verifier_pb2 as pb
from outrider_proto.bundles import BundleFile, BundleManifest, bundle_id, manifest_from_proto, manifest_to_proto
from outrider_proto.errors import Refusal


def _manifest(data: bytes) -> BundleManifest:
    """Its id is made to fit: no fuzzer guesses a SHA-256."""
    message = pb.BundleManifest.FromString(data)
    if message.bundle_id == "fits" and len(message.files) <= 64:
        message.bundle_id = bundle_id(tuple(BundleFile(f.name, f.size_bytes, f.sha256) for f in message.files))
    return manifest_from_proto(message)


def _check(manifest: BundleManifest) -> None:
    assert manifest_from_proto(manifest_to_proto(manifest)) == manifest
    for file in manifest.files:
        assert ".." not in file.name
        assert not file.name.startswith("/")
        assert file.name.isascii()
        assert file.name.isprintable()
        assert file.name.count("/") <= 1


def _seeds() -> dict[str, bytes]:
    names = ("bundle.json", "config.json", "drafter/config.json", "drafter/model.safetensors", "model.safetensors")
    files = tuple(BundleFile(name, 100 + i, bytes([i]) * 32) for i, name in enumerate((*names, "tokenizer.json")))
    whole = BundleManifest("target", "ab" * 16, "cd" * 16, "tap", "moa", "int8", files, ("moa",), ("int8", "float32"))
    least = replace(
        whole, files=tuple(f for f in files if f.name in ("bundle.json", "config.json", "model.safetensors"))
    )
    seeds = {}
    for name, manifest in (("whole", whole), ("least", least)):
        message = manifest_to_proto(manifest)
        seeds[f"{name}-true-id"] = message.SerializeToString()
        message.bundle_id = "fits"
        seeds[name] = message.SerializeToString()
        message.files[0].name = "../bundle.json"
        seeds[f"{name}-outside"] = message.SerializeToString()
    seeds["many-offers"] = pb.BundleManifest(drafters=[""] * 900).SerializeToString()
    seeds["many-files"] = pb.BundleManifest(files=[pb.BundleFile()] * 400).SerializeToString()
    return seeds


TARGETS = (FuzzTarget("manifest", _manifest, _seeds, _check, (Refusal, DecodeError)),)
