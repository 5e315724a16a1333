"""The options of `outrider-bench network` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider_client.core.config import ClientConfig
from outrider_models.core.embedded import DRAFTERS
from outrider_netsim import EngineChoice
from outrider_proto.frames import CODECS

PROFILE = "paper-5g"
MODE = ClientConfig().mode
MODE_OPTIONS = "wait_for_features, opening, in_flight, outcomes, breadth, levels, budget"

ProfilesOption = Annotated[
    list[str] | None,
    typer.Option("--profile", help=f"A link from `outrider-netsim list`, or none; repeatable; {PROFILE}."),
]
PaceOption = Annotated[
    str | None, typer.Option(help="Hardware whose times both sides take: a name (paper) or a TOML file.")
]
DraftersOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", help=f"Embedded name or DIR[,option=value...]; repeatable; {DRAFTERS[0]}."),
]
ModesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="MODE[,OPTION=VALUE...]",
        help=f"Beside the controls; repeatable. Options: {MODE_OPTIONS}. {MODE}.",
    ),
]
PromptsOption = Annotated[int, typer.Option(min=1, help="Held-out prompts, the families in turn.")]
PromptTokensOption = Annotated[
    int, typer.Option(min=0, help="Of each prompt at least: what was asked and answered before is put before it.")
]
RunsOption = Annotated[int, typer.Option(min=1, help="Times that all is repeated; figures are medians.")]
EngineOption = Annotated[
    EngineChoice, typer.Option(help="What makes the link; auto takes the best that this machine allows.")
]
WaitOption = Annotated[
    bool | None, typer.Option(help="Draft on only with the newest features; default: as the drafter needs it.")
]
InFlightOption = Annotated[int | None, typer.Option(help="Drafts under way at once (pipelined).")]
OutcomesOption = Annotated[int | None, typer.Option(help="Outcomes to draft ahead for; default: what pays.")]
CodecsOption = Annotated[
    list[str] | None, typer.Option("--codec", help=f"Of the features, {CODECS[0]}; with --table7 repeatable.")
]
SeedOption = Annotated[int, typer.Option(help="Of the link.")]
Table3Option = Annotated[
    bool, typer.Option("--table3", help="The paper's Table 3: its drafters on one device, over 5G and over 4G.")
]
Table7Option = Annotated[
    bool, typer.Option("--table7", help="Only the paper's Table 7: what messages weigh, by drafter and codec.")
]
