"""Where the models that ship in the package lie: a target in Hugging Face layout and its drafters."""

from pathlib import Path

from outrider_proto.errors import UsageError

_ROOT = Path(__file__).parents[1] / "embedded"
PAIR = ("moa", "eagle2")  # of equal size, taught alike: the two that are compared by default
DRAFTERS = (*PAIR, "moa_tli1", "eagle3", "medusa", "hydra", "independent", "eagle2_math", "eagle2_chat", "eagle2_late")


def target_dir() -> Path:
    """Directory of the embedded target, tokenizer included."""
    return _ROOT / "target"


def drafter_dir(name: str) -> Path:
    """Directory of an embedded drafter. Raises UsageError for a name that does not ship."""
    if name not in DRAFTERS:
        raise UsageError(f"drafter {name!r}: the embedded ones are {', '.join(DRAFTERS)}")
    return _ROOT / name


def drafter_source(text: str) -> str:
    """A drafter's source (drafters/source.py) in which the name of an embedded one stands for its directory."""
    name, comma, options = text.partition(",")
    return f"{drafter_dir(name)}{comma}{options}" if name in DRAFTERS else text


def scores_file() -> Path:
    """Scores of the embedded models on held-out prompts, as measured when they were made."""
    return _ROOT / "scores.json"


def model_dirs() -> dict[str, Path]:
    """Every embedded model that is present, by name."""
    named = {"target": target_dir(), **{name: drafter_dir(name) for name in DRAFTERS}}
    return {name: path for name, path in named.items() if (path / "config.json").is_file()}
