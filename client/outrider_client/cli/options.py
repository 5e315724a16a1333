"""The options that generate, chat and gateway share, and the ClientConfig built from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from outrider_client.cli.access_options import ACCESS_OPTIONS, ServerOption, access_from, with_options, with_port
from outrider_client.connection.policy import Patience
from outrider_client.core.config import (
    AUTO_LIMITS,
    ClientConfig,
    DrafterType,
    LastResort,
    Mode,
    OnFullContext,
    OnReconnect,
    Privacy,
    TreeSize,
)
from outrider_client.display.messages import print_message
from outrider_client.models.pulled import find_pulled
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Route, Routing
from outrider_models.core.embedded import EMBEDDED
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS, MAX_TOP_LOGPROBS, Acceptance, Codec

_DEFAULT = ClientConfig()
_TREE = TreeShape()
_DRAFTER, _SAMPLING, _OUTAGES, PRIVACY_PANEL = "Target and drafter", "Sampling", "Outages", "Private text"
_EXPERT_DRAFTER, _HEADS = "For experts: the drafter", "For experts: several heads"
_DRAFTING, _TYPICAL = "For experts: draft trees and features", "For experts: typical acceptance"
_FOR_EXPERTS = (_EXPERT_DRAFTER, _HEADS, _DRAFTING, _TYPICAL)
_RENAMED = {"wait_for_link": "wait_for_link_s", "draft_history": "draft_history_mb"}


def _options(
    server: ServerOption = _DEFAULT.server,
    mode: Annotated[
        Mode,
        Option(
            help="How text is generated. stop-and-wait, proactive, pipelined: the drafter drafts, the target verifies."
            " server-draft: the server does both. stream: the target alone. offline: the drafter alone. auto: whichever"
            " is fastest.",
            metavar="MODE",
        ),
    ] = _DEFAULT.mode,
    target: Annotated[
        str | None,
        Option(
            help="Target, of which embedding, output layer and tokenizer are read: directory, GGUF file, hub name, or "
            "name got with outrider-models."
            " Default: the bundle pulled from the server, else what outrider-models got, else the embedded target.",
            rich_help_panel=_DRAFTER,
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        Option(
            help="Drafter: directory, hub name, name of one that ships (smollm2/moa), lookup, suffix or none. Repeat"
            " it for several heads. Default: the one in the target's bundle, else the best that ships for the target.",
            rich_help_panel=_DRAFTER,
        ),
    ] = None,
    draft_vocab: Annotated[
        str | None,
        Option(
            help="Tokens that are drafted: a file that `outrider-models draft-vocab` made, the first N of the drafter's"
            " own, or all. Default: the drafter's own, else all.",
            rich_help_panel=_EXPERT_DRAFTER,
        ),
    ] = None,
    draft_history: Annotated[
        int,
        Option(
            min=0,
            help="Megabytes of answers to keep on this device, for the drafter suffix and those with suffix=N to draft"
            " from in later chats with this server; none that were written on private text. See `outrider"
            " draft-history`. 0: keep and read none.",
            metavar="MB",
            rich_help_panel=_DRAFTER,
        ),
    ] = _DEFAULT.draft_history_mb,
    route: Annotated[
        Route | None,
        Option(
            help="With several heads: whose draft is sent. mean-confidence, entropy: the surest head's by that measure."
            f" keywords: that of the head whose keywords occur. Default: {Routing().route}.",
            metavar="ROUTE",
            rich_help_panel=_HEADS,
        ),
    ] = None,
    gate: Annotated[
        float | None,
        Option(
            help="With several heads: let the others rest while the current one gives its first token at least this"
            " probability (0 to 1). Default: off.",
            rich_help_panel=_HEADS,
        ),
    ] = None,
    keywords: Annotated[
        Path | None,
        Option(
            help='With several heads: TOML or JSON file with lines HEAD = ["word", ...], HEAD being the name of its'
            " directory. Implies --route keywords.",
            rich_help_panel=_HEADS,
        ),
    ] = None,
    batch_heads: Annotated[
        bool,
        Option(help="With several heads: run those of one kind and size as one batch.", rich_help_panel=_HEADS),
    ] = True,
    drafter_dtype: Annotated[
        DrafterType | None,
        Option(
            help="Data type of the drafter's weights; bfloat16 is faster on processors that compute in it. Default:"
            " float32, or that of the bundle.",
            rich_help_panel=_EXPERT_DRAFTER,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        Option(
            help="CPU threads of the drafter. Default: 1 for a small drafter, else PyTorch's choice.",
            rich_help_panel=_EXPERT_DRAFTER,
        ),
    ] = _DEFAULT.threads,
    pace: Annotated[
        str | None,
        Option(
            help="Slow the drafter down to the speed of other hardware: paper, or a TOML file of times. Default: off.",
            rich_help_panel=_EXPERT_DRAFTER,
        ),
    ] = None,
    max_new_tokens: Annotated[int, Option(help="Largest number of tokens in an answer.")] = _DEFAULT.max_new_tokens,
    on_full_context: Annotated[
        OnFullContext,
        Option(
            help="What becomes of a chat too long for the context. drop: its oldest turns are left out, and you are"
            " told; system messages and the newest turn stay. error: it is refused.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.on_full_context,
    temperature: Annotated[float, Option(help="Sampling temperature; 0 is greedy.")] = _DEFAULT.sampling.temperature,
    top_k: Annotated[
        int, Option(help="Sample from this many of the likeliest tokens; 0 is off.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.sampling.top_k,
    top_p: Annotated[
        float,
        Option(
            help="Sample from the likeliest tokens that have this probability together; 1 is off.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.sampling.top_p,
    min_p: Annotated[
        float,
        Option(
            help="Sample from tokens that have this share of the likeliest one's probability (0 to 1); 0 is off.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.sampling.min_p,
    repetition_penalty: Annotated[
        float,
        Option(
            help="Make tokens that prompt and answer have already less likely: above 1, at most 2; 1 is off.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.sampling.rules.repetition_penalty,
    seed: Annotated[int, Option(help="Random seed for sampling.", rich_help_panel=_SAMPLING)] = _DEFAULT.sampling.seed,
    acceptance: Annotated[
        Acceptance,
        Option(
            help="Which drafted tokens are accepted. exact: text as the target alone would write it. typical: any"
            " token that is likely enough; faster, but no longer the target's text.",
            rich_help_panel=_TYPICAL,
        ),
    ] = _DEFAULT.sampling.acceptance,
    epsilon: Annotated[
        float,
        Option(help="For --acceptance typical: a probability that is always enough.", rich_help_panel=_TYPICAL),
    ] = _DEFAULT.sampling.epsilon,
    alpha: Annotated[
        float,
        Option(
            help="For --acceptance typical: a probability of this many times exp(-entropy) is enough, too.",
            rich_help_panel=_TYPICAL,
        ),
    ] = _DEFAULT.sampling.alpha,
    logprobs: Annotated[
        int | None,
        Option(
            help="With --json: add the log probability of each token, and of this many likeliest alternatives (0 to"
            f" {MAX_TOP_LOGPROBS}). Default: off.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    breadth: Annotated[
        int | None,
        Option(
            help=f"Nodes of the draft tree that are expanded per level. Default: the drafter's own, else"
            f" {_TREE.breadth}.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    levels: Annotated[
        int | None,
        Option(
            help=f"Levels of the draft tree. Default: the drafter's own, else {_TREE.levels}.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        Option(
            help=f"Nodes of the draft tree without its root. Default: the drafter's own, else {_TREE.budget}.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    min_probability: Annotated[
        float | None,
        Option(
            help="Leave out nodes whose path from the root is less likely than this (0 to 1). Default: 0.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    choices: Annotated[
        str | None,
        Option(
            help="Fixed draft tree: the name of a shipped one, or a JSON list of paths of child ranks.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    tree: Annotated[
        TreeSize | None,
        Option(
            help="Size of draft trees. fixed: as given here, or the drafter's own. auto: as many nodes and levels as"
            f" pay by measured costs and acceptance, within --breadth {AUTO_LIMITS.breadth} --levels"
            f" {AUTO_LIMITS.levels} --budget {AUTO_LIMITS.budget}, or all those given. Default: auto in mode auto where"
            " neither these options nor the drafter say how large, else fixed.",
            rich_help_panel=_DRAFTING,
        ),
    ] = _DEFAULT.tree,
    in_flight: Annotated[
        int, Option(help="Drafts in flight at once in mode pipelined.", rich_help_panel=_DRAFTING)
    ] = _DEFAULT.in_flight,
    outcomes: Annotated[
        int | None,
        Option(
            help="Possible outcomes of a draft in flight to draft ahead for. Default: as many as are cheap together.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    wait_for_features: Annotated[
        bool | None,
        Option(
            help="Wait for the target's newest features before the next draft. Default: where the drafter needs them.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    opening: Annotated[
        bool,
        Option(
            help="Let the server write alone while the features of a long prompt are on their way.",
            rich_help_panel=_DRAFTING,
        ),
    ] = _DEFAULT.opening,
    codec: Annotated[
        Codec,
        Option(
            help=f"Encoding of the features that the server sends: {', '.join(CODECS)}.",
            metavar="CODEC",
            rich_help_panel=_DRAFTING,
        ),
    ] = _DEFAULT.codec,
    wait_for_link: Annotated[
        float,
        Option(
            help="Seconds to wait for a broken link once the drafter has nothing left to write.",
            rich_help_panel=_OUTAGES,
        ),
    ] = 0.0,
    on_reconnect: Annotated[
        OnReconnect,
        Option(
            help="What becomes of the text of an outage: keep it unverified, or have the target verify it.",
            rich_help_panel=_OUTAGES,
        ),
    ] = _DEFAULT.on_reconnect,
    offline_limit: Annotated[
        int | None,
        Option(
            help="Largest number of tokens the drafter writes in an outage. Default: --max-new-tokens, or 256.",
            rich_help_panel=_OUTAGES,
        ),
    ] = None,
    last_resort: Annotated[
        LastResort,
        Option(
            help="What writes offline where the drafter cannot: lookup copies from the text so far, none stops.",
            rich_help_panel=_OUTAGES,
        ),
    ] = _DEFAULT.last_resort,
    offline_start: Annotated[
        bool,
        Option(help="Start even if the server cannot be reached; the drafter then writes.", rich_help_panel=_OUTAGES),
    ] = False,
    link_floor_ms: Annotated[
        float,
        Option(
            min=0,
            help="Milliseconds of silence after which the link counts as broken at the earliest.",
            rich_help_panel=_OUTAGES,
        ),
    ] = _DEFAULT.patience.floor_s * 1000,
    privacy: Annotated[
        Privacy,
        Option(
            help="How private text is kept from the server. local: the drafter answers alone. placeholder: the server"
            " gets a placeholder for it.",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = _DEFAULT.privacy,
) -> None:
    """Declare the options; never called."""


def with_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, which gets them as keywords."""
    return with_options(command, shared_options())


def shared_options() -> dict[str, inspect.Parameter]:
    shared = {**inspect.signature(_options, eval_str=True).parameters, **ACCESS_OPTIONS}
    # Help shows panels in the order of their first options: what only experts need comes last.
    return dict(sorted(shared.items(), key=lambda named: _panel(named[1]) in _FOR_EXPERTS))


def _panel(option: inspect.Parameter) -> str | None:
    panel: str | None = option.annotation.__metadata__[0].rich_help_panel
    return panel


def client_config(options: dict[str, Any], **more: Any) -> ClientConfig:  # Any: each option has its own type
    """Build the configuration from the shared options. Raises UsageError."""
    chosen = {_RENAMED.get(name, name): value for name, value in options.items()} | more
    shape = tree_plan(
        chosen.pop("choices"), **{name: chosen.pop(name) for name in ("breadth", "levels", "budget", "min_probability")}
    )
    patience = Patience(floor_s=chosen.pop("link_floor_ms") / 1000)
    heads = _heads(**{name: chosen.pop(name) for name in ("drafter", "route", "gate", "keywords", "batch_heads")})
    fixed = {
        name: chosen.pop(name)
        for name in ("server", "target", "draft_vocab", "draft_history_mb", "drafter_dtype", "threads", "codec", "pace")
    }
    fixed["server"] = with_port(fixed["server"])
    fixed["access"] = access_from({name: chosen.pop(name) for name in ACCESS_OPTIONS if name in chosen})
    if fixed["target"] is None and heads["drafter"] is None:
        fixed["target"] = find_pulled(fixed["server"])
    offline = {name: chosen.pop(name) for name in ("offline_start", "last_resort")}
    config = replace(ClientConfig(shape=shape, patience=patience), **fixed, **heads, **offline).for_answer(**chosen)
    return _with_told_defaults(config)


def _with_told_defaults(config: ClientConfig) -> ClientConfig:
    """Fill in target and drafter, and tell the user where an installed model takes the embedded one's place."""
    from outrider_client.models.local_models import with_default_models

    filled = with_default_models(config)
    if config.target is None and filled.target != EMBEDDED:
        print_message(f"target {filled.target}, drafter {filled.drafter}; --target {EMBEDDED} is the built-in one")
    return filled


def _heads(
    drafter: list[str] | None, route: Route | None, gate: float | None, keywords: Path | None, batch_heads: bool
) -> dict[str, Any]:  # Any: as above
    """The fields of ClientConfig that choose the drafting heads. Raises UsageError."""
    first, *others = drafter or (None,)
    if route is not None and not others:
        raise UsageError(f"route={route}: there is only one head; give --drafter twice or more")
    if keywords is not None and route is None:
        route = "keywords"
    return {
        "drafter": first,
        "other_heads": tuple(others),
        "routing": Routing(route or Routing().route, gate, batched=batch_heads if others else True),
        "keywords": None if keywords is None else Keywords.load(keywords),
    }


def tree_plan(choices: str | None, **limits: float | None) -> TreePlan | None:
    """A fixed tree, or one within the limits that are not None; None if no option was given.

    Raises UsageError if both were.
    """
    given = {name: value for name, value in limits.items() if value is not None}
    if choices is None:
        return TreeShape(**given) if given else None  # type: ignore[arg-type] # each limit has the type of its option
    if given:
        raise UsageError(f"choices={choices} fixes the tree: leave out {', '.join(given)}")
    return TreeChoices.load(choices)
