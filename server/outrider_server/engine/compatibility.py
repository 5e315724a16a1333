"""The check, at load, whether a model can run on slots. One that cannot is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from math import isnan
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from outrider_drafters.blocks.float32_arithmetic import Float32Arithmetic, is_plain
from outrider_drafters.checkpoints.hf_config import explained
from outrider_drafters.quantization.quantize import dtype_name
from outrider_drafters.readers.checkpoint import release
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree
from outrider_server.engine.attention import IMPLEMENTATION, Decoder, FlatBatch, hand_on_slots
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.hf_model import BatchInvariance, eager_attention, holds_int8, int8_codes
from outrider_server.kv.budget import KVShape, RowShape
from outrider_server.kv.slot import KVSlot

_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Refused beyond the original length: they scale by the length of the batch, which holds sessions of many lengths.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_PROBE_TOKENS = 12
# Frequent pieces of text in every large vocabulary: behind bytes and special tokens, its first merges. Two texts, for a
# near-tie of a router of experts may fall either way; a wrong attention fails with both.
_FIRST_TOKENS = (1000, 3000)
_PROBE_WINDOW = 5
# Mean, in logit standard deviations. Two orders of summation differ in float32 by 1e-6; a mask, a position or a scale
# that is wrong in one layer makes it 1e-3 and more.
_TOLERANCE = 1e-4
_ROUNDING = 0.1  # of passes in bfloat16 and float16; where the model's own are off by more, twice that
TRIAL: ContextVar[tuple[int, bool] | None] = ContextVar("TRIAL", default=None)  # the arguments of the trial() entered


class _Recorder:
    """A stand-in for the slots that records what every layer asks for."""

    def __init__(self) -> None:
        self.rows: dict[int, RowShape] = {}
        self.readers: list[tuple[int, int]] = []
        self.dtype = torch.float32
        self.calls = 0
        self._keys: dict[int, Tensor] = {}  # of the layers that make their own

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.calls += 1
        self.rows[layer] = RowShape(key.shape[1], key.shape[3], value.shape[3])
        self.dtype = key.dtype
        # The very tensor of an earlier layer: this one keeps no K/V of its own (Gemma 4).
        source = next((earlier for earlier, own in self._keys.items() if own is key), None)
        if source is None:
            self._keys[layer] = key
        else:
            self.readers.append((layer, source))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@torch.inference_mode()
def probe(model: PreTrainedModel, max_context: int) -> KVShape:
    """Return the shape of the target's K/V. Raises UsageError for a model that slots cannot serve."""
    kind, config = model.config.model_type, model.config.get_text_config()
    _check_config(kind, config, max_context)
    recorder = _Recorder()
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        hand_on_slots(model)
        with _ReleasedWeights():
            model(**_inputs([0, 0], [0, 1], model), slots=recorder)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise UsageError(
            f"{kind}: its attention does not run on slots (AttentionInterface, layer_idx): {explained(error)}"
        ) from error
    layers = config.num_hidden_layers
    if sorted(recorder.rows) != list(range(layers)) or recorder.calls != layers:
        raise UsageError(f"{kind}: {len(recorder.rows)} of {layers} layers go through AttentionInterface; need all")
    rows = tuple(recorder.rows[layer] for layer in range(layers))
    return KVShape(rows, recorder.dtype, model.device, tuple(recorder.readers))


@torch.inference_mode()
def check_against_eager(model: PreTrainedModel, kv: KVShape, max_context: int, fused: Decoder | None = None) -> None:
    """Compare a few tokens through slots with the model's own attention. Raises UsageError if they differ.

    In float32, whatever the weights' type, since rounding hides a wrong attention there; then in their type.
    `fused`: compare its passes instead of the model's own.
    """
    for first in _FIRST_TOKENS:
        fault = _fault(model, kv, max_context, first, fused)
        if fault is None:
            return
    raise UsageError(f"{model.config.model_type}: {fault}")


def _fault(model: PreTrainedModel, kv: KVShape, max_context: int, first: int, fused: Decoder | None) -> str | None:
    """Return what is wrong with passes on slots, if anything."""
    tokens = _probe_tokens(model, max_context, first)
    wide = replace(kv, dtype=torch.promote_types(kv.dtype, torch.float32)) if is_plain(model) else kv
    is_narrow = wide != kv or holds_int8(model)
    with trial(model, max_context, is_narrow):
        reference = _own_logits(model, tokens)
        difference = _difference(_through_slots(model, wide, tokens, fused), reference)
    # Not `difference > ...`, here and below: NaN is a fault too.
    if not difference <= (_ROUNDING if wide.dtype.itemsize < 4 else _TOLERANCE):
        return (
            f"slots do not reproduce the model's own attention (logits differ by {difference:.2g} standard"
            " deviations); this architecture cannot be a target"
        )
    if not is_narrow:
        return None
    with trial(model, max_context, False):
        difference = _difference(_through_slots(model, kv, tokens, fused), reference)
        if difference <= _ROUNDING or difference <= 2 * (own := _difference(_own_logits(model, tokens), reference)):
            return None
    remedy = "its own numbers leave the type's range: serve it in float32" if isnan(own) else "serve it in float32"
    name = "int8" if holds_int8(model) else dtype_name(kv.dtype)
    return f"in {name} its logits are off by {difference:.2g} standard deviations; {remedy}"


class _ReleasedWeights(TorchFunctionMode):
    """While it is entered, a weight of a file takes memory during its product alone."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:  # torch's
        result = func(*args, **(kwargs or {}))
        if func in (F.linear, F.embedding):
            release(args[1])
        return result


@contextmanager
def trial(model: PreTrainedModel, max_context: int, in_float32: bool) -> Iterator[None]:
    """Compute in float32, and with sliding windows so narrow that a few tokens reach beyond them.

    Some architectures have their window in the mask alone, which slots replace: only such a text shows it. A window as
    wide as the context hides nothing, and stays.
    """
    owners: list[Any] = [model.config.get_text_config(), *model.modules()]
    # Pairs, not a dict: configs have no hash.
    widths = [(one, getattr(one, "sliding_window", None)) for one in owners]
    widths = [(one, width) for one, width in widths if isinstance(width, int) and width < max_context]
    token = TRIAL.set((max_context, in_float32))
    try:
        for owner, _ in widths:
            owner.sliding_window = _PROBE_WINDOW
        arithmetic = Float32Arithmetic(lambda weight: int8_codes(weight) is not None)
        with arithmetic if in_float32 else nullcontext(), _ReleasedWeights():
            yield
    finally:
        for owner, width in widths:
            owner.sliding_window = width
        TRIAL.reset(token)


class _NarrowBatch(FlatBatch):
    """A batch with trial()'s windows, for a pass that keeps those of the model."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        trial = TRIAL.get()
        window = _PROBE_WINDOW if trial and call.window and call.window < trial[0] else call.window
        return super().attend(layer, query, key, value, AttentionCall(call.scaling, call.softcap, window, call.sinks))


@torch.inference_mode()
def check_invariance(
    model: PreTrainedModel,
    kv: KVShape,
    max_context: int,
    together: Decoder | None = None,
    alone: Decoder | None = None,
) -> None:
    """Compare a few tokens in two passes with one a pass, bit for bit. Raises UsageError if they differ.

    With fused decoders: those of two that must give the same.
    """
    with BatchInvariance(), _ReleasedWeights():
        rows = _together_and_alone(model, kv, max_context, together, alone, invariant=True)
    if not torch.equal(*rows):
        raise UsageError(
            f"{model.config.model_type}: its passes cannot be made batch-invariant here: logits depend on how many rows"
            " a pass has; leave batch-invariant out"
        )


@torch.inference_mode()
def are_alike(model: PreTrainedModel, kv: KVShape, max_context: int, together: Decoder, alone: Decoder) -> bool:
    """Return whether a decoder gives a few tokens, one a pass, another's logits but for rounding."""
    difference = _difference(*_together_and_alone(model, kv, max_context, together, alone))
    return difference <= (_ROUNDING if kv.dtype.itemsize < 4 else _TOLERANCE)


def _together_and_alone(
    model: PreTrainedModel,
    kv: KVShape,
    max_context: int,
    together: Decoder | None,
    alone: Decoder | None,
    *,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return logits of a few tokens [tokens, vocab] in two passes, and in one a token."""
    tokens = _probe_tokens(model, max_context)
    both = _through_slots(model, kv, tokens, together, invariant=invariant)
    slot, rows = KVSlot(kv), []
    for token in tokens:
        segment = BatchSegment(slot, 1, DraftTree(), max_position=len(tokens))
        rows.append(_pass(model, alone, [token], segment.positions, FlatBatch([segment], invariant=invariant)))
        slot.commit(1)
    return both, torch.cat(rows).float()


def _pass(
    model: PreTrainedModel, fused: Decoder | None, tokens: list[int], positions: list[int], batch: FlatBatch
) -> Tensor:
    """Return logits [tokens, vocab]."""
    if fused is None:
        logits: Tensor = model(**_inputs(tokens, positions, model), slots=batch).logits[0]
        return logits
    rows = torch.tensor([tokens, positions], device=model.device)
    return fused.forward(rows[0], rows[1], batch, None, frozenset())[0]


def _probe_tokens(model: PreTrainedModel, max_context: int, first: int = _FIRST_TOKENS[0]) -> list[int]:
    vocab = model.config.get_text_config().vocab_size
    return [(first + 13 * i) % vocab for i in range(min(_PROBE_TOKENS, max_context))]


def _difference(logits: Tensor, reference: Tensor) -> float:
    """Return how far the logits are from the reference, in its standard deviations."""
    return float((logits - reference).abs().mean() / reference.std().clamp_min(1e-6))


def _own_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    with eager_attention(model):
        logits: Tensor = model(**_inputs(tokens, list(range(len(tokens))), model)).logits
    return logits[0].float()


def _through_slots(
    model: PreTrainedModel,
    kv: KVShape,
    tokens: list[int],
    fused: Decoder | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """Return logits [tokens, vocab] float32: twice a chain and a tree, with a wrong branch beside every right one.

    The second pass reads what is committed of the first.
    """
    slot = KVSlot(kv)
    vocab = model.config.get_text_config().vocab_size
    half = len(tokens) // 2
    answers = []
    for part in (tokens[:half], tokens[half:]):
        chain, (tree, path) = part[: max(1, half // 2)], _forked(part[max(1, half // 2) :], vocab)
        segment = BatchSegment(slot, len(chain), tree, max_position=slot.length + len(tokens))
        flat = [*chain, *tree.tokens]
        kind = FlatBatch if fused is None else _NarrowBatch
        logits = _pass(model, fused, flat, segment.positions, kind([segment], invariant=invariant))
        slot.commit(len(chain), path)
        answers.append(logits[[*range(len(chain)), *(len(chain) + node for node in path)]])
    return torch.cat(answers).float()


def _forked(tokens: list[int], vocab_size: int) -> tuple[DraftTree, list[int]]:
    """Return a tree in which `tokens` follow each other, each beside a dead end, and the nodes that they are.

    Which of the two comes first changes from level to level: a mask may be wrong for the first child or the last alone.
    """
    nodes, parents, path = list[int](), list[int](), list[int]()
    for level, token in enumerate(tokens):
        parents += [path[-1] if path else ROOT] * 2
        path.append(len(nodes) + (level + 1) % 2)
        pair = (token + 1) % vocab_size, token
        nodes += pair[::-1] if level % 2 else pair
    return DraftTree(tuple(nodes), tuple(parents)), path


def _check_config(kind: str, config: Any, max_context: int) -> None:  # a model's config has whatever fields it likes
    types = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if types:
        raise UsageError(
            f"{kind}: layers of type {', '.join(sorted(types))}, which do not run over a tree of drafts;"
            f" need {' or '.join(sorted(_LAYER_TYPES))}"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{kind}: an encoder-decoder; a target is a causal language model")
    if max_context > _rope_limit(config):
        raise UsageError(
            f"{kind}: its position embedding changes with the length of the text; limit it with"
            f" --max-context {_rope_limit(config)}"
        )


def _rope_limit(config: Any) -> float:
    """Return the longest context in which position embeddings do not depend on the length."""
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = [each for each in (rope, *rope.values()) if isinstance(each, dict)]  # some configs have one a layer type
    limits = [
        int(each.get("original_max_position_embeddings") or config.max_position_embeddings)
        for each in ropes
        if each.get("rope_type") in _LENGTH_DEPENDENT_ROPE
    ]
    return min(limits, default=float("inf"))


def _inputs(tokens: list[int], positions: list[int], model: PreTrainedModel) -> dict[str, Any]:
    rows = torch.tensor([tokens, positions], device=model.device)
    # An index, not 0: with a number Gemma 4 cuts rows before its last layers, which transformers 5.23 fails at without
    # per-layer embeddings.
    keep = torch.arange(len(tokens), device=model.device)
    return {"input_ids": rows[:1], "position_ids": rows[1:], "use_cache": False, "logits_to_keep": keep}
