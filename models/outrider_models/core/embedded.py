"""Directories of the models that ship in the package: a target in Hugging Face layout and its drafters."""

from pathlib import Path

from outrider_proto.errors import UsageError

_ROOT = Path(__file__).parents[1] / "embedded"
PAIR = ("moa", "eagle2")  # equal in size and training: the two that are compared by default
DRAFTERS = (*PAIR, "moa_tli1", "eagle3", "medusa", "hydra", "independent", "eagle2_math", "eagle2_chat", "eagle2_late")


def target_dir() -> Path:
    """Return the directory of the embedded target and its tokenizer."""
    return _ROOT / "target"


def drafter_dir(name: str) -> Path:
    """Return the directory of an embedded drafter. Raises UsageError for an unknown name."""
    if name not in DRAFTERS:
        raise UsageError(f"drafter {name!r}: the embedded ones are {', '.join(DRAFTERS)}")
    return _ROOT / name


def drafter_source(text: str) -> str:
    """Replace the name of an embedded drafter by its directory in a drafter source such as `moa,tli=1`."""
    name, comma, options = text.partition(",")
    return f"{drafter_dir(name)}{comma}{options}" if name in DRAFTERS else text


def scores_file() -> Path:
    """Return the file of the embedded models' scores on held-out prompts, measured after training."""
    return _ROOT / "scores.json"


def model_dirs() -> dict[str, Path]:
    """Return the directory of every embedded model that is present, by name."""
    named = {"target": target_dir(), **{name: drafter_dir(name) for name in DRAFTERS}}
    return {name: path for name, path in named.items() if (path / "config.json").is_file()}
