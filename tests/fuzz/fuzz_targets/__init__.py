"""What is fuzzed: for each target a module that is only imported when it is run, so that atheris can instrument what it
imports. A target takes any bytes; what it raises is a finding."""

from importlib import import_module

from fuzz_targets.target import FuzzTarget

_MODULES = {
    "tokens": "packing",
    "tree": "packing",
    "likelihoods": "packing",
    "features": "features",
    "zstd": "features",
    "huffman": "features",
    "client-frame": "frames",
    "server-frame": "frames",
    "description": "frames",
    "manifest": "bundles",
    "status": "status",
    "credentials": "credentials",
    "bundle-file": "files",
    "config": "strangers",
    "gguf": "strangers",
    "schema": "strangers",
    "template": "strangers",
    "keys-file": "strangers",
    "gateway-body": "gateway",
    "session": "session",
}
NAMES = tuple(_MODULES)


def load(name: str) -> FuzzTarget:
    """Raises KeyError for a name that is none."""
    targets = import_module(f"fuzz_targets.{_MODULES[name]}").TARGETS
    return next(target for target in targets if target.name == name)
