"""Options of `outrider-lab virtual` and `sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    LevelsOption,
    NewTokensOption,
    PlotOption,
)
from outrider_bench.harness.study import StudyOptions
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_bench.network.variants import ModeVariant

PACE = "paper"
MODES = ("stop-and-wait", "proactive", "pipelined")


@dataclass(frozen=True, kw_only=True)
class _ReplayOptions(StudyOptions):
    tape: Annotated[Path, Flag("Tape made by `outrider-lab record`.")]
    pace: Annotated[str, Flag("Hardware to emulate: a name or a TOML file.")] = PACE
    mode: Annotated[
        tuple[str, ...],
        Flag(
            f"Mode to replay beside the controls; repeatable; default: {', '.join(MODES)}.",
            metavar="MODE[,OPTION=VALUE...]",
        ),
    ] = ()
    codec: Annotated[Codec, Flag("Feature codec.")] = "int8"
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    seed: Annotated[int, Flag("Random seed of the links, and of thin.")] = 1
    plot: PlotOption = None

    @property
    def tree(self) -> Mapping[str, int | None]:
        """Options of all variants."""
        return {"breadth": self.breadth, "levels": self.levels, "budget": self.budget}

    @property
    def variants(self) -> list[ModeVariant]:
        """The controls and the modes. Raises UsageError."""
        from outrider_bench.network.variants import ModeVariant, with_controls
        from outrider_client.core.config import ClientConfig

        variants = with_controls([ModeVariant.parse(text, self.tree) for text in self.mode or MODES], self.tree)
        for variant in variants:
            variant.configured(ClientConfig())
        return variants


@dataclass(frozen=True, kw_only=True)
class VirtualOptions(_ReplayOptions):
    """Replay a tape over links and hardware in virtual time; report keys as in `outrider-bench network`."""

    shown = "tape profile json"
    profile: Annotated[tuple[str, ...], Flag("Profile, or none; repeatable; default: paper-5g.")] = ()
    max_new_tokens: Annotated[int | None, Field(ge=2), Flag("New tokens per answer; default: all that were taped.")] = (
        None
    )
    thin: Annotated[float, Flag("Share of the answers' tokens that the drafter shall miss.")] = 0.0
    runs: Annotated[int, Field(ge=1), Flag("Links with consecutive seeds to replay over; results are medians.")] = 5


@dataclass(frozen=True, kw_only=True)
class SweepOptions(_ReplayOptions):
    """Map which mode is the fastest over R x T_v x tau, in virtual time."""

    shown = "tape json"
    rtt: Annotated[str, Flag("Round-trip times R in ms, separated by commas.")] = "5,15,30,50,80,120,200"
    verify: Annotated[str, Flag("Times T_v of a target pass in ms, separated by commas.")] = "6,15,33,60,100"
    thin: Annotated[str, Flag("Shares of the tokens that the drafter shall miss; the larger, the smaller tau.")] = (
        "0,0.1,0.25"
    )
    max_new_tokens: NewTokensOption = 64

    def numbers(self, name: str) -> Sequence[float]:
        """Return the numbers of an option. Raises UsageError."""
        text = getattr(self, name)
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError:
            raise UsageError(f"{name}={text!r}: need numbers separated by commas") from None
