"""Experiments: what `outrider-bench network` measures, from a TOML file and the command line, which overrides it.

The cases are drafters x profiles x seeds, and every case has all modes beside the controls. pydantic checks the types,
NetworkPlan the values. Paths in a file are relative to it.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from outrider_bench.core.prompts import QuestionSource
from outrider_bench.network.plan import NetworkPlan
from outrider_bench.network.variants import CONTROLS
from outrider_client.core.config import ClientConfig
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import shipped_drafters, target_source
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec

Raw = Mapping[str, Any]  # Any: whatever a TOML file may hold
_FORBID_EXTRA: Final[Any] = {"extra": "forbid"}  # Any: pydantic's ConfigDict
_PATHS = ("target", "pace", "drafters", "questions")  # each but the last also takes names
DEFAULT_PROMPTS = 24  # of the corpus


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The tree of all modes; None: the drafter's own."""

    __pydantic_config__ = _FORBID_EXTRA

    breadth: int | None = None
    levels: int | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Each field is a key of the file, and an option of the command."""

    __pydantic_config__ = _FORBID_EXTRA

    target: str | None = None
    profiles: tuple[str, ...] = ("paper-5g",)
    drafters: tuple[str, ...] | None = None  # None: the best that ships for the target, or else lookup
    modes: tuple[str, ...] = (ClientConfig().mode,)
    seeds: tuple[int, ...] = (1,)
    pace: str | None = None
    codec: Codec = "int8"
    engine: EngineChoice = "auto"
    questions: str | None = None
    families: tuple[str, ...] | None = None
    prompts: int | None = None
    max_new_tokens: int = 128
    prompt_tokens: int = 0
    cores_apart: bool = False
    runs: int = 1
    tree: TreeOptions = TreeOptions()
    wait_for_features: bool | None = None
    in_flight: int | None = None
    outcomes: int | None = None

    @property
    def plan(self) -> NetworkPlan:
        """Raises UsageError for values out of range and unknown names."""
        for name in ("profiles", "drafters", "modes", "seeds", "families"):
            if getattr(self, name) == ():
                raise UsageError(f"{name}=[]: need at least one")
        target = resolve_dir(target_source(self.target))
        questions = None if self.questions is None else Path(self.questions)
        return NetworkPlan(
            target=target,
            profiles=self.profiles,
            drafters=self.drafters or shipped_drafters(target)[:1] or ("lookup",),
            variants=[mode for mode in dict.fromkeys(self.modes) if mode not in CONTROLS],
            common={
                "breadth": self.tree.breadth,
                "levels": self.tree.levels,
                "budget": self.tree.budget,
                "wait_for_features": self.wait_for_features,
                "in_flight": self.in_flight,
                "outcomes": self.outcomes,
            },
            pace=self.pace,
            codec=self.codec,
            engine=self.engine,
            source=QuestionSource.of(target, questions, self.families),
            prompts=DEFAULT_PROMPTS if self.prompts is None and questions is None else self.prompts,
            max_new_tokens=self.max_new_tokens,
            prompt_tokens=self.prompt_tokens,
            cores_apart=self.cores_apart,
            runs=self.runs,
            seeds=self.seeds,
        )


def planned(file: Path | None, given: Raw, defaults: Raw | None = None) -> NetworkPlan:
    """Return the plan of `file`, overridden by what was `given`, above `defaults`.

    Raises UsageError, which names the file if the fault is the file's.
    """
    below = dict(defaults or {})
    if file is None:
        return _experiment({**below, **given}).plan
    table = _beside(_read(file), file.absolute().parent)
    try:
        # First by itself: what is wrong then is the file's, and all else came from the command line.
        _experiment({**below, **table}).plan  # noqa: B018 # checks the values
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    tree = {**table.get("tree", {}), **given.get("tree", {})}
    return _experiment({**below, **table, **given, "tree": tree}).plan


def _read(file: Path) -> dict[str, Any]:  # Any: as Raw
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise UsageError(f"{file}: not TOML: {error}") from None


def _experiment(raw: Raw) -> Experiment:
    try:
        # Strict by way of JSON: there a tuple is a list, but a number is no text.
        return TypeAdapter(Experiment).validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_explained(error.errors(include_url=False)[0])) from None


def _explained(fault: Any) -> str:  # Any: pydantic's ErrorDetails
    """Return the first fault in our own words."""
    place = [str(part) for part in fault["loc"] if isinstance(part, str)]
    of = TreeOptions if place[0] == "tree" and len(place) > 1 else Experiment
    known = [field.name for field in fields(of)]
    match fault["type"]:
        case "unexpected_keyword_argument":
            return f"key {'.'.join(place)!r} is unknown: {_hint(place[-1], known)}"
        case "literal_error":
            choices = str(fault["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            return f"{place[0]}={fault['input']!r}: {_hint(str(fault['input']), choices)}"
        case "dataclass_type":
            return f"{place[0]}={fault['input']!r}: need a table, [{place[0]}]"
        case _:
            message = str(fault["msg"]).removeprefix("Input should be ").removesuffix(" array")
            wanted = "a list, in brackets" if fault["type"] == "tuple_type" else message
            return f"{'.'.join(place)}={json.dumps(fault['input'], default=str)}: need {wanted}"


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


def _beside(table: Raw, folder: Path) -> dict[str, Any]:  # Any: as Raw
    """Return the values with those that name something beside the file made absolute."""
    found = dict(table)
    for key in _PATHS:
        match found.get(key):
            case str(text):
                found[key] = _anchored(text, folder)
            case list(texts):
                found[key] = [_anchored(text, folder) if isinstance(text, str) else text for text in texts]
            case _:
                pass
    return found


def _anchored(text: str, folder: Path) -> str:
    path, comma, options = text.partition(",")  # of a drafter: DIR,option=value
    beside = folder / Path(path).expanduser()
    return f"{beside}{comma}{options}" if path.startswith(("./", "../", "~/")) or beside.exists() else text
