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
from outrider_bench.network.link_endpoint import profile_or_none
from outrider_bench.network.variants import STREAM, ModeVariant
from outrider_client.core.config import NO_DRAFTER, ClientConfig, DrafterType
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.load import open_drafter
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec

BASELINE = "generate"
LOOKUP, ASSISTANT, PLAIN = "generate-lookup", "generate-assistant", "plain"
OWN_TREE, AUTO_TREE = "own", "auto"
_TREES = (OWN_TREE, AUTO_TREE, *SHAPES)
IN_PROCESS = "in process"
_NAME = re.compile(r"[^\w.=+-]+")  # what a file's name is better without


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """A way of ours: a drafter (None: none), in process or over a link, and the options of its answers."""

    drafter: str | None
    profile: str
    choices: Mapping[str, Any]  # Any: each field of ClientConfig has its own type


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """All that determines the answers and their times. Raises UsageError.

    `drafters` are sources by name, `assistant` the directory of a small model for transformers, `modes` texts (see
    network/variants.py), `trees` of `own`, `auto`, `chain` and `tree`. Without profiles everything runs in process.
    """

    target: Path
    source: QuestionSource
    drafters: Mapping[str, str]
    assistant: Path | None
    modes: Sequence[str]
    profiles: Sequence[str]
    trees: Sequence[str]
    max_new_tokens: int
    runs: int
    seed: int
    dtype: str
    device: str
    threads: int | None
    codec: Codec
    engine: EngineChoice

    def __post_init__(self) -> None:
        for name in self.trees:
            if name not in _TREES:
                raise UsageError(f"tree={name!r}: choose from {', '.join(_TREES)}")
        for name in self.profiles:
            profile_or_none(name)
        for source in self.drafters.values():
            open_drafter(DrafterSource.parse(source))
        for mode in self.modes:
            ModeVariant.parse(mode, {}).configured(ClientConfig())
        _ = self.clients  # for its UsageError

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        """What must be the same for a run to be resumed, links in full."""
        profiles = {name: None if (link := profile_or_none(name)) is None else asdict(link) for name in self.profiles}
        settings = {**asdict(self), "source": self.source.settings, "profiles": profiles}
        return dict(json.loads(json.dumps(settings, default=str)))

    @property
    def baselines(self) -> list[str]:
        """The ways without drafting of ours."""
        return [BASELINE, LOOKUP, *([] if self.assistant is None else [ASSISTANT]), PLAIN]

    @property
    def clients(self) -> dict[str, ClientSpec]:
        """Our ways, by name. Raises UsageError for two of the same name."""
        found: dict[str, ClientSpec] = {}
        for name, spec in self._named():
            if found.setdefault(name, spec) != spec or name in self.baselines:
                raise UsageError(f"two ways are called {name}: give the drafters' directories other names")
        return found

    @property
    def ways(self) -> list[str]:
        return [*self.baselines, *self.clients]

    @property
    def server_options(self) -> list[str]:
        """Options for `outrider-server serve`; drafts of its own for mode server-draft."""
        drafters = [option for source in self.drafters.values() for option in ("--drafter", source)]
        threads = [] if self.threads is None else ["--threads", str(self.threads)]
        precision = ["--dtype", self.dtype, "--device", self.device]
        # Every way pays for its prompts: none finds what another one has computed.
        return [
            "--target",
            str(self.target),
            *drafters,
            "--server-draft",
            "--shared-prefixes",
            "none",
            *precision,
            *threads,
        ]

    def config(self, spec: ClientSpec, server: str | None = None) -> ClientConfig:
        """Return the configuration of a client of ours, at `server` or in process."""
        drafter = NO_DRAFTER if spec.drafter is None else self.drafters[spec.drafter]
        models: dict[str, Any] = {"target": self.target, "drafter": drafter, "threads": self.threads}  # Any: as above
        # Drafters take the target's type, as the baselines' assistant does; they have no float16.
        if self.dtype in get_args(DrafterType):
            models["drafter_dtype"] = self.dtype
        if server is None:
            return stop_and_wait_config(codec="float32", **models)
        return ClientConfig(server=server, codec=self.codec, **models)

    def _named(self) -> list[tuple[str, ClientSpec]]:
        named = []
        for drafter in self.drafters:
            for tree in self.trees:
                suffix, shape = "" if tree == OWN_TREE else f"-{tree}", _tree_choices(tree)
                if not self.profiles:
                    named.append((_file_name(drafter + suffix), ClientSpec(drafter, IN_PROCESS, shape)))
                for profile in self.profiles:
                    named += [self._over_link(drafter, suffix, shape, profile, mode) for mode in self.modes]
        return named

    def _over_link(
        self, drafter: str, suffix: str, shape: Mapping[str, Any], profile: str, mode: str
    ) -> tuple[str, ClientSpec]:
        variant = ModeVariant.parse(mode, {})
        if variant.mode == STREAM:
            # The same for all drafters: nobody drafts.
            return _file_name(f"{mode}-{profile}"), ClientSpec(None, profile, variant.choices)
        return _file_name(f"{drafter}{suffix}-{mode}-{profile}"), ClientSpec(
            drafter, profile, {**shape, **variant.choices}
        )


def _tree_choices(name: str) -> dict[str, Any]:  # Any: each field of ClientConfig has its own type
    if name == OWN_TREE:
        return {}
    return {"tree": AUTO_TREE} if name == AUTO_TREE else {"shape": SHAPES[name]}


def _file_name(name: str) -> str:
    return _NAME.sub("-", name)


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
