"""The models on the device: the drafter, the target's tokenizer and its fingerprints. Never the target."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import torch

from outrider_client.core.config import ClientConfig, OnFullContext
from outrider_client.core.prompt import (
    CHAT,
    ChatForm,
    PlainMessage,
    PlainPrompt,
    Raw,
    plain_prompt,
    safe_text,
    segments_of,
    since,
    turn_starts,
)
from outrider_client.core.prompt import Prompt as Prompt
from outrider_client.models.draft_history import DraftHistory
from outrider_client.models.offline_drafter import choose_offline
from outrider_client.models.private_tokens import PrivateSplit, split
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.catalog import catalog
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.schema_compiler import SchemaCompiler, SchemaQueue
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.emulation.paced_drafter import PacedDrafter
from outrider_drafters.families.lookup import family as lookup
from outrider_drafters.families.suffix import family as suffix
from outrider_drafters.families.suffix.hybrid import HybridDrafter
from outrider_drafters.load import load_drafter
from outrider_drafters.readers.config import read_json
from outrider_drafters.routing.keywords import KeywordRule
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_models.core.embedded import (
    DRAFTERS,
    EMBEDDED,
    Writes,
    default_target,
    drafter_source,
    shipped_drafters,
    target_source,
)
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_proto.frames import Codec, Open, ServerDescription, TokenRules

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Values of lm_head, a drafter's largest matrix. Below this, CPU threads cost more in synchronization than they save.
_SMALL = 4_000_000

# Of generation_config.json, those that vLLM's server takes as its defaults.
_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")

# No real text has more characters a token: what has is refused before the tokenizer spends seconds on it.
_MAX_CHARS_PER_TOKEN = 128
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair; Python reads bytes as such that are no text


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's token ids, and how many of its oldest messages were left out."""

    tokens: list[int]
    num_dropped: int = 0


@dataclass(frozen=True)
class LocalModels:
    """Drafter and tokenizer, which any number of clients may share.

    `load_text` loads the tokenizer at the first text; None if the target has none.
    """

    drafter: Drafter | None
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    target_fingerprint: str
    tokenizer_fingerprint: str
    load_text: Callable[[], TargetTokenizer] | None = field(default=None, repr=False)
    drafter_threads: int | None = None  # None: torch decides
    keywords: KeywordRule | None = None  # chooses among several heads
    schemas: SchemaQueue | None = None  # of JSON answers
    history: DraftHistory | None = field(default=None, repr=False)  # earlier answers to draft from
    writes: Writes = "alone"  # what the drafter may write without the target
    offline_drafter: Drafter | None = None  # writes where the drafter may not

    @classmethod
    def load(cls, config: ClientConfig) -> LocalModels:
        """Load the drafter and the parts of the target that it borrows. Raises UsageError."""
        config = with_default_models(config)
        target = resolve_dir(target_source(config.target))
        weights = TargetWeights.load(target, None if config.drafter_dtype is None else _DTYPES[config.drafter_dtype])
        has_text = (target / "tokenizer.json").is_file()
        if config.keywords is not None and not has_text:
            raise UsageError(f"{target}: no tokenizer.json, and route=keywords needs the text: choose another route")
        drafter, tokenizer = _load_drafters(config, weights), tokenizer_fingerprint(target)
        offline = choose_offline(config, drafter, lambda source: _load_drafter(source, config, weights))
        return cls(
            drafter=drafter,
            writes=offline.writes,
            offline_drafter=offline.other,
            history=_draft_history(config, drafter, tokenizer),
            keywords=None if config.keywords is None else config.keywords.for_heads(head_names(config.drafters)),
            vocab_size=weights.sizes.vocab,
            max_context=weights.sizes.max_context,
            eos_token_ids=weights.eos_token_ids,
            target_fingerprint=target_fingerprint(target),
            tokenizer_fingerprint=tokenizer,
            drafter_threads=config.threads or (1 if weights.lm_head.numel() < _SMALL else None),
            load_text=(lambda: TargetTokenizer(target)) if has_text else None,
            schemas=SchemaQueue(SchemaCompiler(target, weights.sizes.vocab, weights.eos_token_ids)),
        )

    def open_frame(self, codec: Codec = "int8") -> Open:
        return Open(
            protocol_version=PROTOCOL_VERSION,
            target_fingerprint=self.target_fingerprint,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            tap="" if self.drafter is None else self.drafter.tap.fingerprint,
            codec=codec,
        )

    def mismatch(self, server: ServerDescription) -> str | None:
        """Return what keeps these models from working with a server; None if they fit."""
        own = self.open_frame()
        pairs = (
            ("protocol version", own.protocol_version, (server.protocol_version,)),
            ("target", own.target_fingerprint, (server.target_fingerprint,)),
            ("tokenizer", own.tokenizer_fingerprint, (server.tokenizer_fingerprint,)),
            ("drafter's features", own.tap, ("", *(tap.fingerprint for tap in server.taps))),
        )
        return next((f"{name} here {ours}, on the server {', '.join(map(str, theirs)) or 'none'}"
                     for name, ours, theirs in pairs if ours not in theirs), None)  # fmt: skip

    @cached_property
    def only_copies(self) -> bool:
        """True if what writes alone copies from the text, and so should begin no answer in a chat."""
        return self.writer is not None and all(
            head.family in (lookup.NAME, suffix.NAME) for head in RoutedDrafter.of(self.writer).heads
        )

    @property
    def writer(self) -> Drafter | None:
        """What writes whole answers on this device, if anything does."""
        return self.drafter if self.offline_drafter is None and self.writes == "alone" else self.offline_drafter

    @cached_property
    def text(self) -> TargetTokenizer:
        """The target's tokenizer. Raises UsageError if it has none."""
        if self.load_text is None:
            raise UsageError("this target has no tokenizer: give the prompt as token ids")
        return self.load_text()

    def prepare(self) -> None:
        """Load the tokenizer now: importing and reading it takes seconds that would delay the first text."""
        if self.load_text is not None:
            _ = self.text

    def rules_of(self, rules: TokenRules) -> AnswerRules | None:
        """Return the rules of one answer, if any. Raises UsageError for those that cannot be followed."""
        for token, _ in rules.logit_bias:
            if not isinstance(token, SupportsIndex) or not 0 <= token < self.vocab_size:
                raise UsageError(f"logit_bias has token {token!r}: the vocabulary has {self.vocab_size}")
        schemas = None if self.schemas is None else self.schemas.compiler
        try:
            return AnswerRules(rules, schemas) if rules else None
        except Refusal as refusal:
            raise UsageError(refusal.message) from refusal

    async def compile_schema(self, rules: TokenRules) -> None:
        """Compile the schema of an answer: `rules_of` would, and all that runs in its thread would wait.

        Raises UsageError for one that cannot be followed.
        """
        try:
            if rules.json_schema and self.schemas and self.schemas.compiler.find(rules.json_schema) is None:
                await self.schemas.compile(rules.json_schema)
        except Refusal as refusal:
            raise UsageError(refusal.message) from refusal

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the tokens' text, or an empty one without a tokenizer."""
        return "" if self.load_text is None else self.text.decode(tokens)

    def encode(self, prompt: Prompt | PlainPrompt, *, raw: Raw, form: ChatForm = CHAT) -> list[int]:
        """Return a prompt's token ids, without private segments; text is a message unless `raw`. Raises UsageError."""
        written = plain_prompt(prompt, safe_text)
        self._check_texts(prompt)
        if not isinstance(written, str):
            tokens = [item for item in written if isinstance(item, int)]
            if turns := [item for item in written if not isinstance(item, int)]:
                tokens = self.text.encode_chat(turns, form)
        elif not written.strip():
            raise UsageError("prompt is empty: give some text")
        elif raw:
            tokens = self.text.encode(written if raw is True else self.text.control.guarded(written))
        else:
            tokens = self.text.encode_chat([PlainMessage(role="user", content=written)])
        if not tokens:
            raise UsageError("prompt is empty: give at least one token")
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise UsageError(f"prompt has token {token}: the vocabulary has {self.vocab_size}")
        return tokens

    def encode_newest(
        self, prompt: Prompt | PlainPrompt, *, raw: Raw, reserve: int, on_full: OnFullContext, form: ChatForm = CHAT
    ) -> EncodedPrompt:
        """Encode a prompt; of a chat leave out as many of its oldest turns as `reserve` more tokens need to fit.

        `reserve` counts as a quarter of the context at most. System messages and the newest turn always stay. Raises
        UsageError, or Refusal for a text that is longer than any that fits.
        """
        written = plain_prompt(prompt, safe_text)
        messages = [] if isinstance(written, str) else [item for item in written if not isinstance(item, int)]
        starts = turn_starts(messages)
        if on_full == "error" or len(starts) < 2:
            return EncodedPrompt(self.encode(written, raw=raw, form=form))
        most = self.max_context - min(reserve, self.max_context // 4)
        tried: dict[int, list[int]] = {}

        def fits(start: int) -> bool:
            kept = since(messages, start)
            if not self._is_short(message["content"] for message in kept):
                return False
            tried[start] = self.encode(kept, raw=raw, form=form)
            return len(tried[start]) <= most

        # All of it first, and only then by halves: most chats fit.
        start = starts[0] if fits(starts[0]) else starts[min(bisect_left(starts, True, 1, key=fits), len(starts) - 1)]
        kept = since(messages, start)
        tokens = tried.get(start) or self.encode(kept, raw=raw, form=form)
        return EncodedPrompt(tokens, len(messages) - len(kept))

    def split(self, prompt: Prompt, *, raw: Raw) -> PrivateSplit:
        """Return the tokens before the first private segment and those from there on. Raises UsageError or Refusal."""
        # No error of this path may quote the text or its tokens: errors reach logs and terminals.
        self._check_texts(prompt)
        parts = split(prompt, self.text, raw=raw)
        if not all(0 <= token < self.vocab_size for token in parts.whole):
            raise UsageError(f"prompt has tokens beyond the vocabulary of {self.vocab_size}")
        return parts

    def _check_texts(self, prompt: Prompt | PlainPrompt) -> None:
        texts = [segment.text for segment in segments_of(prompt)]
        if any(map(_HALF.search, texts)):  # tokenizers fail on them
            raise UsageError("prompt holds half a character, which no UTF-8 has: is its encoding another one?")
        if not self._is_short(texts):
            raise Refusal(
                Reason.CONTEXT_FULL, f"prompt is far too long: the target's context is {self.max_context} tokens"
            )

    def _is_short(self, texts: Iterable[str]) -> bool:
        """Return whether texts of so many characters may fit the context."""
        return sum(map(len, texts)) <= _MAX_CHARS_PER_TOKEN * self.max_context


def with_default_models(config: ClientConfig) -> ClientConfig:
    """Name target and drafter where none is given; the drafter of a target that is not ours stays None."""
    target = config.target or default_target(source for source in config.drafters if isinstance(source, str))
    if config.drafter is not None or not (target == EMBEDDED or target in catalog()):
        return replace(config, target=target)
    best = shipped_drafters(target)
    return replace(config, target=target, drafter=next(iter(best), "lookup"))


def head_names(sources: Sequence[str | Path | DrafterSource | None]) -> tuple[str, ...]:
    """Return the drafters' names: the last part of each path, all of it or a number where two would be the same."""
    full = [DRAFTERS[0] if source is None else DrafterSource.parse(source).name for source in sources]
    last = [Path(name).name for name in full]
    names = [short if last.count(short) == 1 else name for short, name in zip(last, full, strict=True)]
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return tuple(f"{name}#{count + 1}" if count else name for name, count in zip(names, before, strict=True))


def _load_drafters(config: ClientConfig, weights: TargetWeights) -> Drafter | None:
    """Return the drafter: None without one; several become heads that are routed between."""
    drafters = [_paced(_load_drafter(source, config, weights), config.pace) for source in config.drafters]
    if config.draft_vocab is not None and not drafters:
        raise UsageError(f"draft_vocab={config.draft_vocab}: there is no drafter to use it; leave it out")
    if len(drafters) < 2:
        return drafters[0] if drafters else None
    return RoutedDrafter(drafters, head_names(config.drafters), config.routing)


def _draft_history(config: ClientConfig, drafter: Drafter | None, tokenizer: str) -> DraftHistory | None:
    if not config.draft_history_mb:
        return None
    heads = () if drafter is None else RoutedDrafter.of(drafter).heads
    unpaced = [head.inner if isinstance(head, PacedDrafter) else head for head in heads]
    # By its name: lookup is a suffix drafter, too, but has no history.
    if not any(head.family == suffix.NAME or isinstance(head, HybridDrafter) for head in unpaced):
        raise UsageError(
            f"draft_history_mb={config.draft_history_mb}: the drafter does not draft from earlier text: choose suffix, "
            "or give the drafter the option suffix=1"
        )
    assert drafter is not None
    server = config.server if config.served_as is None else config.served_as
    return DraftHistory(server, tokenizer, drafter.vocab_size, config.draft_history_mb)


def _paced(drafter: Drafter, pace: str | Path | None) -> Drafter:
    if pace is None:
        return drafter
    hardware = Pace.load(pace)
    return PacedDrafter(drafter, hardware.draft_level_ms, hardware.level_factor)


def _load_drafter(source: str | Path | DrafterSource | None, config: ClientConfig, weights: TargetWeights) -> Drafter:
    if isinstance(source, str):
        source = drafter_source(source, config.target)
    if source is None and weights.directory is not None and find_bundle(weights.directory) is not None:
        source = weights.directory
    if source is None:
        raise UsageError("drafter is not given: name one for this target, or none")
    return load_drafter(DrafterSource.parse(source).with_draft_vocab(config.draft_vocab), weights)


def recommended_sampling(target: str | Path | None) -> dict[str, Any]:  # Any: each has its own type
    """Return how answers of a target are sampled by the file that its authors publish with it, as vLLM reads that.

    Fields of ClientConfig.for_answer; none without the file. Raises UsageError.
    """
    path = resolve_dir(target_source(target)) / "generation_config.json"
    if not path.is_file():
        return {}
    settings = read_json(path)
    recommended = {name: settings[name] for name in _RECOMMENDED if settings.get(name) is not None}
    if settings.get("do_sample") is True:  # transformers samples at temperature 1 unless the file names another one
        recommended = {"temperature": 1.0} | recommended
    try:
        ClientConfig().for_answer(**recommended)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path}: {error}; --no-generation-config passes over the file") from error
    return recommended
