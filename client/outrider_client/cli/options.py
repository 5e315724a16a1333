"""The options that commands share, declared once, and the configuration they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from outrider_client.cli.access_options import ACCESS_OPTIONS, access_from, with_options, with_port
from outrider_client.connection.policy import Patience
from outrider_client.core.config import ClientConfig, LastResort, Mode, OnReconnect, Privacy
from outrider_client.models.pulled import find_pulled
from outrider_drafters.contracts.tree_choices import Choices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Route, Routing
from outrider_proto.errors import UsageError
from outrider_proto.frames import Acceptance, Codec

_DEFAULT = ClientConfig()
_TREE = TreeShape()
_RENAMED = {"wait_for_link": "wait_for_link_s"}


def _options(
    server: Annotated[str, Option(help="The server's HOST or HOST:PORT.")] = _DEFAULT.server,
    target: Annotated[
        str | None,
        Option(
            help="Directory or hub name of the target (embedding, lm_head, tokenizer); what was pulled from the server,"
            " else the embedded one."
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        Option(help="Directory or hub name of the drafter, or none; the embedded one. Repeat it for several heads."),
    ] = None,
    route: Annotated[
        Route | None,
        Option(help="Of several heads, send the draft of the surest, or of the one whose keywords occur."),
    ] = None,
    gate: Annotated[
        float | None,
        Option(help="Spare the other heads where the one in use gives its first token at least this probability."),
    ] = None,
    keywords: Annotated[
        Path | None,
        Option(help='For route keywords: TOML or JSON, HEAD = ["word", ...], HEAD the directory\'s name.'),
    ] = None,
    batch_heads: Annotated[bool, Option(help="Draft heads of one kind and size in one batch.")] = True,
    mode: Annotated[Mode, Option(help="Who writes: drafter and target, the target alone, the drafter alone.")] = (
        _DEFAULT.mode
    ),
    max_new_tokens: Annotated[int, Option(help="Tokens of an answer.")] = _DEFAULT.max_new_tokens,
    temperature: Annotated[float, Option(help="0 is greedy.")] = _DEFAULT.sampling.temperature,
    top_k: Annotated[int, Option(help="Choose among so many; 0 is off.")] = _DEFAULT.sampling.top_k,
    top_p: Annotated[float, Option(help="Choose among so much probability; 1 is off.")] = _DEFAULT.sampling.top_p,
    seed: Annotated[int, Option(help="Of the choice.")] = _DEFAULT.sampling.seed,
    acceptance: Annotated[
        Acceptance, Option(help="Of drafted tokens. typical: any that is likely enough. Lossy, not the target's text.")
    ] = _DEFAULT.sampling.acceptance,
    epsilon: Annotated[float, Option(help="Of typical: probability always enough.")] = _DEFAULT.sampling.epsilon,
    alpha: Annotated[float, Option(help="Of typical: share of exp(-entropy) enough.")] = _DEFAULT.sampling.alpha,
    breadth: Annotated[int | None, Option(help=f"Nodes of the draft tree expanded a level; {_TREE.breadth}.")] = None,
    levels: Annotated[int | None, Option(help=f"Levels of the draft tree; {_TREE.levels}.")] = None,
    budget: Annotated[int | None, Option(help=f"Nodes of the draft tree, root not counted; {_TREE.budget}.")] = None,
    min_probability: Annotated[float | None, Option(help="Draft only what is at least so likely; 0.")] = None,
    choices: Annotated[
        str | None, Option(help="Fixed draft tree: a shipped set's name or a JSON list of paths of child ranks.")
    ] = None,
    in_flight: Annotated[int, Option(help="Drafts under way at once (pipelined).")] = _DEFAULT.in_flight,
    outcomes: Annotated[
        int | None, Option(help="Outcomes of a draft under way to draft for; as many as cost little together.")
    ] = None,
    wait_for_features: Annotated[
        bool | None, Option(help="Draft on only with the newest features; where the drafter needs them.")
    ] = None,
    opening: Annotated[
        bool, Option(help="While a long prompt's features are on their way, let the server write alone.")
    ] = _DEFAULT.opening,
    pace: Annotated[
        str | None, Option(help="Stretch the drafter's passes to named hardware's: paper, or a TOML file.")
    ] = None,
    threads: Annotated[int | None, Option(help="CPU threads of the drafter; one for a small one.")] = _DEFAULT.threads,
    codec: Annotated[Codec, Option(help="Of the features.")] = _DEFAULT.codec,
    on_reconnect: Annotated[OnReconnect, Option(help="Let unverified tokens stand, or have them verified.")] = (
        _DEFAULT.on_reconnect
    ),
    offline_limit: Annotated[
        int | None, Option(help="Tokens the drafter may write in an outage; the answer's.")
    ] = None,
    last_resort: Annotated[
        LastResort, Option(help="Who writes offline where the drafter cannot: what the text says already, or nobody.")
    ] = _DEFAULT.last_resort,
    offline_start: Annotated[bool, Option(help="Begin without a server if need be.")] = False,
    privacy: Annotated[
        Privacy, Option(help="Of <<private>> text: the drafter answers alone here, or placeholders stand in for it.")
    ] = _DEFAULT.privacy,
    wait_for_link: Annotated[float, Option(help="Seconds to wait for it when the drafter is done.")] = 0.0,
    logprobs: Annotated[
        int | None,
        Option(help="With --json: how likely the target finds its tokens, and so many likeliest in the place of each."),
    ] = None,
    link_floor_ms: Annotated[float, Option(help="Silence that is never taken for a lost link.")] = (
        _DEFAULT.patience.floor_s * 1000
    ),
) -> None:
    """Never called: its signature is what counts."""


def with_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the shared options, and gets them as keywords; its own before those of the same name."""
    shared = inspect.signature(_options, eval_str=True).parameters
    return with_options(command, {**shared, **ACCESS_OPTIONS})


def client_config(options: dict[str, Any], **more: Any) -> ClientConfig:  # Any: each option has its own type
    """The configuration that the shared options make. Raises UsageError."""
    chosen = {_RENAMED.get(name, name): value for name, value in options.items()} | more
    shape = tree_plan(
        chosen.pop("choices"), **{name: chosen.pop(name) for name in ("breadth", "levels", "budget", "min_probability")}
    )
    patience = Patience(floor_s=chosen.pop("link_floor_ms") / 1000)
    heads = _heads(**{name: chosen.pop(name) for name in ("drafter", "route", "gate", "keywords", "batch_heads")})
    fixed = {name: chosen.pop(name) for name in ("server", "target", "threads", "codec", "pace")}
    fixed["server"] = with_port(fixed["server"])
    fixed["access"] = access_from({name: chosen.pop(name) for name in ACCESS_OPTIONS if name in chosen})
    if fixed["target"] is None and heads["drafter"] is None:
        fixed["target"] = find_pulled(fixed["server"])
    offline = {name: chosen.pop(name) for name in ("offline_start", "last_resort")}
    return replace(ClientConfig(shape=shape, patience=patience), **fixed, **heads, **offline).for_answer(**chosen)


def _heads(
    drafter: list[str] | None, route: Route | None, gate: float | None, keywords: Path | None, batch_heads: bool
) -> dict[str, Any]:  # Any: as above
    """The fields of ClientConfig that say who drafts. Raises UsageError."""
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
    """The draft trees that were asked for: fixed, or within the limits that are not None; None when neither was.

    Raises UsageError for both.
    """
    given = {name: value for name, value in limits.items() if value is not None}
    if choices is None:
        return TreeShape(**given) if given else None  # type: ignore[arg-type] # each limit has the type of its option
    if given:
        raise UsageError(f"choices={choices} fixes the tree: leave out {', '.join(given)}")
    return Choices.load(choices)
