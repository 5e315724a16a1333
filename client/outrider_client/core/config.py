"""The client's configuration, validated once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from outrider_client.connection.access import DEFAULT_PORT, PLAIN, Access, server_address
from outrider_client.connection.policy import Backoff, Patience, Timeouts
from outrider_client.core.prompt import Raw
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Routing
from outrider_proto.errors import UsageError, Violation
from outrider_proto.flag import Flag
from outrider_proto.frames import MAX_TOP_LOGPROBS, Codec, Sampling, TokenRules

Mode = Literal["auto", "stop-and-wait", "proactive", "pipelined", "server-draft", "stream", "offline"]
OnReconnect = Literal["keep", "verify"]
LastResort = Literal["lookup", "none"]
DrafterType = Literal["float32", "bfloat16"]
TreeSize = Literal["fixed", "auto"]
Privacy = Literal["local", "placeholder"]
OnFullContext = Literal["drop", "error"]
UNLIMITED = 2**31 - 1  # max_new_tokens: as many as the context holds
UNASKED = 2048  # and that of a chat, where nobody asked for a number: an answer may never end by itself
_ALONE = 256  # tokens that the drafter writes alone where nobody did
NO_DRAFTER = "none"
PRIVACY_PANEL = "Private text"
_MODELS = "Target and drafter"
AUTO_LIMITS = TreeShape(breadth=8, levels=8, budget=32)  # of trees of automatic size, unless others are given

RULE_FIELDS = {field.name for field in fields(TokenRules)} - {"answer_from"}
SAMPLING_FIELDS = {field.name for field in fields(Sampling)}
# fmt: off
_OF_ANSWER = {
    "mode", "shape", "tree", "sampling", "max_new_tokens", "on_reconnect", "offline_limit", "last_resort",
    "wait_for_link_s", "wait_for_features", "opening", "stop_loops", "on_full_context", "in_flight", "outcomes", "raw",
    "privacy", "logprobs", "parse_special",
}
# fmt: on
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "mode": get_args(Mode),
    "on_reconnect": get_args(OnReconnect),
    "on_full_context": get_args(OnFullContext),
    "codec": get_args(Codec),
    "last_resort": get_args(LastResort),
    "privacy": get_args(Privacy),
    "tree": (None, *get_args(TreeSize)),
    "drafter_dtype": (None, *get_args(DrafterType)),
}
_AT_LEAST = {"threads": 1, "in_flight": 1, "outcomes": 1, "max_new_tokens": 1} | dict.fromkeys(
    ("draft_history_mb", "offline_limit", "wait_for_link_s"), 0
)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """All settings of a client. Raises UsageError.

    `target` and `drafter` are directories, hub names or names of ours (smollm2, smollm2/moa). None takes the pair that
    `outrider-models get` has installed, else the embedded one; the drafter "none" means no drafter at all. A field with
    a Flag is an option of the commands; `for_answer` tells which ones can be overridden for each answer.
    """

    server: Annotated[
        str,
        Flag(
            "Server address, HOST or HOST:PORT, or a server's name in the configuration file.", envvar="OUTRIDER_SERVER"
        ),
    ] = f"127.0.0.1:{DEFAULT_PORT}"
    target: Annotated[
        str | Path | None,
        Flag(
            "Target, of which embedding, output layer and tokenizer are read: directory, GGUF file, hub name, or name"
            " got with outrider-models. Default: the bundle pulled from the server, else what outrider-models got, else"
            " the embedded target.",
            panel=_MODELS,
        ),
    ] = None
    drafter: str | Path | DrafterSource | None = None  # may carry options: see DrafterSource
    other_heads: tuple[str | Path | DrafterSource, ...] = ()  # further drafters that run as heads next to the first
    mode: Annotated[
        Mode,
        Flag(
            "How text is generated. stop-and-wait, proactive, pipelined: the drafter drafts, the target verifies."
            " server-draft: the server does both. stream: the target alone. offline: the drafter alone. auto: whichever"
            " is fastest.",
            metavar="MODE",
        ),
    ] = "auto"
    max_new_tokens: Annotated[int, Flag("Largest number of tokens in an answer.")] = 256
    draft_vocab: Annotated[
        str | None,
        Flag(
            "Tokens that are drafted: a file that `outrider-models draft-vocab` made, the first N of the drafter's own,"
            " or all. Default: the drafter's own, else all.",
            expert=True,
        ),
    ] = None
    # Its text is kept per server, and never what was written on private text.
    draft_history_mb: Annotated[
        int,
        Flag(
            "Megabytes of answers to keep on this device, for the drafter suffix and those with suffix=N to draft from"
            " in later chats with this server; none that were written on private text. See `outrider draft-history`. 0:"
            " keep and read none.",
            name="draft-history",
            expert=True,
        ),
    ] = 0
    routing: Routing = field(default_factory=Routing)  # how to route between the heads
    keywords: Keywords | None = None  # for route=keywords: words by head name
    drafter_dtype: Annotated[
        DrafterType | None,
        Flag(
            "Data type of the drafter's weights; bfloat16 is faster on processors that compute in it. Default: float32,"
            " or that of the bundle.",
            expert=True,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Flag("CPU threads of the drafter. Default: 1 for a small drafter, else PyTorch's choice.", expert=True),
    ] = None
    pace: Annotated[
        str | Path | None,
        Flag(
            "Slow the drafter down to the speed of other hardware: paper, or a TOML file of times. Default: off.",
            expert=True,
        ),
    ] = None
    served_as: str | None = None  # the server where `server` is but a way to it; whose answers a history holds
    codec: Annotated[Codec, Flag("Encoding of the features that the server sends.", metavar="CODEC", expert=True)] = (
        "lean"
    )
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: Annotated[
        int | None,
        Flag(
            "With --json: add the log probability of each token, and of this many likeliest alternatives (0 to"
            f" {MAX_TOP_LOGPROBS}). Default: off.",
            expert=True,
        ),
    ] = None
    on_full_context: Annotated[
        OnFullContext,
        Flag(
            "What becomes of a chat too long for the context. drop: its oldest turns are left out, and you are told;"
            " system messages and the newest turn stay. error: it is refused.",
            expert=True,
        ),
    ] = "drop"
    wait_for_link_s: Annotated[
        float, Flag("Seconds to wait for a broken link once nothing here can write on.", panel="Outages")
    ] = 30.0
    offline_drafter: Annotated[
        str | None,
        Flag(
            "What writes in an outage, in mode offline and on private text: as --drafter, or none; then the client"
            " waits. Default: the drafter if it is a language model, else one that ships and is measured to write"
            " sensible text, else none.",
            panel="Outages",
        ),
    ] = None
    stop_loops: Annotated[
        bool, Flag("End an answer that goes round in circles: a block three times, in 64 tokens or more.", expert=True)
    ] = False
    on_reconnect: Annotated[
        OnReconnect,
        Flag("What becomes of the text of an outage: keep it unverified, or have the target verify it.", expert=True),
    ] = "verify"
    offline_limit: Annotated[
        int | None,
        Flag(
            "Largest number of tokens the drafter writes in an outage. Default: --max-new-tokens, or 256.", expert=True
        ),
    ] = None
    last_resort: Annotated[
        LastResort,
        Flag(
            "What writes offline where the drafter cannot: lookup copies from the text so far, none stops.", expert=True
        ),
    ] = "lookup"
    offline_start: Annotated[
        bool, Flag("Start even if the server cannot be reached; the drafter then writes.", expert=True)
    ] = False
    privacy: Annotated[
        Privacy,
        Flag(
            "How private text is kept from the server. local: the drafter answers alone. placeholder: the server gets a"
            " placeholder for it.",
            panel=PRIVACY_PANEL,
        ),
    ] = "local"
    access: Access = PLAIN  # TLS and the server's access key
    timeouts: Timeouts = field(default_factory=Timeouts)
    patience: Patience = field(default_factory=Patience)
    backoff: Backoff = field(default_factory=Backoff)
    shape: TreePlan | None = None  # of draft trees; None: what the drafter was made for, else TreeShape()
    tree: Annotated[
        TreeSize | None,
        Flag(
            "Size of draft trees. fixed: as given here, or the drafter's own. auto: as many nodes and levels as pay by"
            f" measured costs and acceptance, within breadth={AUTO_LIMITS.breadth} levels={AUTO_LIMITS.levels}"
            f" budget={AUTO_LIMITS.budget}, or all those given. Default: auto in mode auto where neither these options"
            " nor the drafter say how large, else fixed.",
            expert=True,
        ),
    ] = None
    in_flight: Annotated[int, Flag("Drafts in flight at once in mode pipelined.", expert=True)] = 2
    outcomes: Annotated[
        int | None,
        Flag(
            "Possible outcomes of a draft in flight to draft ahead for. Default: as many as are cheap together.",
            expert=True,
        ),
    ] = None
    wait_for_features: Annotated[
        bool | None,
        Flag(
            "Wait for the target's newest features before the next draft. Default: where the drafter needs them.",
            expert=True,
        ),
    ] = None
    opening: Annotated[
        bool, Flag("Let the server write alone while the features of a long prompt are on their way.", expert=True)
    ] = True
    raw: bool = False  # the prompt is text to go on with, not a chat: no template, and a lookup may begin the answer

    parse_special: Annotated[
        bool,
        Flag(
            "What spells a control token in a raw prompt, such as <|im_end|>, is that token. In a chat it never is.",
            expert=True,
        ),
    ] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "server", server_address(self.server))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                shown = ", ".join(each for each in choices if each is not None)
                raise UsageError(f"{name}={getattr(self, name)!r}: need one of {shown}")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            kind: Any = Real if name == "wait_for_link_s" else Integral  # NumPy's, too; Any: mypy knows no order
            if value is not None and not (isinstance(value, kind) and value >= least):
                whole = " whole" if kind is Integral else ""
                raise UsageError(f"{name}={value!r}: need a{whole} number of at least {least}")
        if self.tree == "auto" and isinstance(self.shape, TreeChoices):
            raise UsageError("tree=auto chooses the nodes, and so do choices: leave one of them out")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise UsageError(f"logprobs={self.logprobs}: need 0 to {MAX_TOP_LOGPROBS}, or None for none at all")
        is_bare = self.drafter == NO_DRAFTER and self.offline_drafter in (None, NO_DRAFTER)
        if is_bare and self.last_resort == "none" and (self.mode == "offline" or self.offline_start):
            raise UsageError("without a drafter and a last resort nothing can be written offline: name one")
        self._check_heads()
        self.access.check_for(self.server)

    @property
    def drafters(self) -> tuple[str | Path | DrafterSource | None, ...]:
        """All heads in order; empty without a drafter."""
        return () if self.drafter == NO_DRAFTER else (self.drafter, *self.other_heads)

    @property
    def raw_form(self) -> Raw:
        """How `raw` and `parse_special` have a prompt read."""
        return self.raw and (self.parse_special or "as text")

    @property
    def drafter_limit(self) -> int:
        """Largest number of tokens that the drafter writes alone in an answer on private text, or in an outage."""
        unasked = (UNASKED, UNLIMITED) if self.stop_loops else (UNLIMITED,)
        return _ALONE if self.max_new_tokens in unasked else self.max_new_tokens

    def _check_heads(self) -> None:
        if self.other_heads and NO_DRAFTER in (self.drafter, *self.other_heads):
            raise UsageError("drafter none cannot be one of several heads: leave it or the others out")
        if not self.other_heads and (self.routing != Routing() or self.keywords is not None):
            raise UsageError("route, gate, keywords: there is only one head; name two drafters or more")
        if (self.routing.route == "keywords") != (self.keywords is not None):
            raise UsageError("route=keywords and the words themselves go together: give both or neither")

    def for_answer(self, **overrides: Any) -> Self:  # Any: each field has its own type, checked above
        """Return this configuration with other values for one answer.

        Fields of Sampling and TokenRules may be named directly; `json_schema` may be what JSON holds, `logit_bias` a
        mapping. Raises UsageError for an unknown field, or one that is fixed for the client's lifetime.
        """
        sampling = {name: overrides.pop(name) for name in SAMPLING_FIELDS & overrides.keys()}
        rules = {name: overrides.pop(name) for name in RULE_FIELDS & overrides.keys()}
        for name in overrides.keys() - _OF_ANSWER:
            choices = sorted(_OF_ANSWER | SAMPLING_FIELDS | RULE_FIELDS)
            raise UsageError(f"{name}: an answer can choose {', '.join(choices)}")
        if not isinstance(schema := rules.get("json_schema", ""), str):
            rules["json_schema"] = json.dumps(schema)
        if isinstance(biases := rules.get("logit_bias"), Mapping):
            rules["logit_bias"] = tuple(sorted(biases.items()))
        # `replace` runs __post_init__, which validates the new values.
        changed = replace(self, **overrides)
        try:
            if rules:
                sampling["rules"] = replace(sampling.get("rules", changed.sampling.rules), **rules)
            return replace(changed, sampling=replace(changed.sampling, **sampling)) if sampling else changed
        except Violation as violation:
            raise UsageError(violation.message) from violation
        except TypeError as error:
            raise UsageError(f"{', '.join((*sampling, *rules))}: a value is of the wrong type: {error}") from error

    def for_answer_from(self, position: int) -> Self:
        """Return this configuration for an answer whose first token has that position, which its rules count from."""
        sampling = self.sampling
        if not sampling.rules:
            return self
        return replace(self, sampling=replace(sampling, rules=replace(sampling.rules, answer_from=position)))
