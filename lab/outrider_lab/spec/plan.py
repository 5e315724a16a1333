"""The plan of `outrider-lab spec`: what is asked, and every way of answering it by the name of its answer file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.pair import stop_and_wait_config
from outrider_bench.core.prompts import QuestionSource
from outrider_client.core.config import ClientConfig, DrafterType
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.load import open_drafter
from outrider_proto.errors import UsageError

BASELINE = "generate"
LOOKUP, ASSISTANT, PLAIN = "generate-lookup", "generate-assistant", "plain"
OWN_TREE, AUTO_TREE = "own", "auto"
_TREES = (OWN_TREE, AUTO_TREE, *SHAPES)
_NAME = re.compile(r"[^\w.=+-]+")  # what a file's name is better without


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """A way of ours: a drafter, and the options of its answers."""

    drafter: str
    choices: Mapping[str, Any]  # Any: each field of ClientConfig has its own type


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """All that determines the answers and their times. Raises UsageError.

    `drafters` are sources by name, `assistant` the directory of a small model for transformers, `trees` of `own`,
    `auto`, `chain` and `tree`.
    """

    target: Path
    source: QuestionSource
    drafters: Mapping[str, str]
    assistant: Path | None
    trees: Sequence[str]
    max_new_tokens: int
    runs: int
    seed: int
    dtype: str
    device: str
    threads: int | None

    def __post_init__(self) -> None:
        for name in self.trees:
            if name not in _TREES:
                raise UsageError(f"tree={name!r}: choose from {', '.join(_TREES)}")
        for source in self.drafters.values():
            open_drafter(DrafterSource.parse(source))
        _ = self.clients  # for its UsageError

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        """What must be the same for a run to be resumed."""
        settings = {**asdict(self), "source": self.source.settings}
        return dict(json.loads(json.dumps(settings, default=str)))

    @property
    def baselines(self) -> list[str]:
        """The ways without drafting of ours."""
        return [BASELINE, LOOKUP, *([] if self.assistant is None else [ASSISTANT]), PLAIN]

    @property
    def clients(self) -> dict[str, ClientSpec]:
        """Our ways, by name. Raises UsageError for two of the same name."""
        found: dict[str, ClientSpec] = {}
        for drafter in self.drafters:
            for tree in self.trees:
                name = _NAME.sub("-", drafter if tree == OWN_TREE else f"{drafter}-{tree}")
                spec = ClientSpec(drafter, _tree_choices(tree))
                if found.setdefault(name, spec) != spec or name in self.baselines:
                    raise UsageError(f"two ways are called {name}: give the drafters' directories other names")
        return found

    @property
    def ways(self) -> list[str]:
        return [*self.baselines, *self.clients]

    def config(self, spec: ClientSpec) -> ClientConfig:
        """Return the configuration of a client of ours."""
        drafter = self.drafters[spec.drafter]
        models: dict[str, Any] = {"target": self.target, "drafter": drafter, "threads": self.threads}  # Any: as above
        # Drafters take the target's type, as the baselines' assistant does; they have no float16.
        if self.dtype in get_args(DrafterType):
            models["drafter_dtype"] = self.dtype
        return stop_and_wait_config(codec="float32", **models)


def _tree_choices(name: str) -> dict[str, Any]:  # Any: each field of ClientConfig has its own type
    if name == OWN_TREE:
        return {}
    return {"tree": AUTO_TREE} if name == AUTO_TREE else {"shape": SHAPES[name]}


def drafter_names(sources: Sequence[str]) -> dict[str, str]:
    """Return drafters' sources by the last part of their paths, options included. Raises UsageError for equal names."""
    named: dict[str, str] = {}
    for source in sources:
        name, comma, options = source.partition(",")
        short = f"{Path(name).name}{comma}{options}"
        if named.setdefault(short, source) != source:
            raise UsageError(f"drafter {source}: another one is called {short}, too: give it another directory")
    return named


def assistant_among(sources: Sequence[str]) -> Path | None:
    """Return the directory of the first independent drafter; None if there is none."""
    for source in sources:
        family, files = open_drafter(DrafterSource.parse(source))
        if family.name == "independent":
            return files.directory
    return None
