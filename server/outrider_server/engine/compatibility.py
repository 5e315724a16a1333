"""The check, at load, whether a model can run on slots. One that cannot is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree
from outrider_server.engine.attention import IMPLEMENTATION, FlatBatch
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.fused_decoder import FusedDecoder
from outrider_server.engine.hf_model import BatchInvariance, eager_attention, explained
from outrider_server.kv.budget import KVShape, RowShape
from outrider_server.kv.slot import KVSlot

_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Refused beyond the original length: they scale by the length of the batch, which holds sessions of many lengths.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_PROBE_TOKENS = 12
_PROBE_WINDOW = 5
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}  # mean, in logit standard deviations


class _Recorder:
    """A stand-in for the slots that records what every layer asks for."""

    def __init__(self) -> None:
        self.windows: dict[int, int | None] = {}
        self.rows: dict[int, RowShape] = {}
        self.readers: list[tuple[int, int]] = []
        self.dtype = torch.float32
        self.calls = 0
        self._keys: dict[int, Tensor] = {}  # of the layers that make their own

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.calls += 1
        self.windows[layer] = call.window
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
        model(**_inputs([0, 0], [0, 1], model), slots=recorder)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(
            f"{kind}: its attention does not run on slots (AttentionInterface, layer_idx): {explained(error)}"
        ) from error
    layers = config.num_hidden_layers
    if sorted(recorder.windows) != list(range(layers)) or recorder.calls != layers:
        raise UsageError(f"{kind}: {len(recorder.windows)} of {layers} layers go through AttentionInterface; need all")
    _check_windows(kind, config, recorder)
    rows = tuple(recorder.rows[layer] for layer in range(layers))
    return KVShape(rows, recorder.dtype, model.device, tuple(recorder.readers))


@torch.inference_mode()
def check_against_eager(model: PreTrainedModel, kv: KVShape, max_context: int, *, narrow: bool = True) -> None:
    """Compare a few tokens through slots with the model's own attention. Raises UsageError if they differ.

    `narrow`: with windows that they reach beyond; not of a divided target, whose other ranks keep theirs.
    """
    tokens = _probe_tokens(model, max_context)
    with _narrow_windows(model) if narrow else nullcontext():
        logits = _through_slots(model, kv, tokens)
        with eager_attention(model):
            reference = model(**_inputs(tokens, list(range(len(tokens))), model)).logits[0].float()
    difference = _difference(logits, reference)
    # Not `difference > ...`: NaN must be refused too.
    if not difference <= _TOLERANCE.get(kv.dtype, 0.05):
        raise UsageError(
            f"{model.config.model_type}: slots do not reproduce the model's own attention (logits differ by"
            f" {difference:.2g} standard deviations); this architecture cannot be a target"
        )


@torch.inference_mode()
def agrees(fused: FusedDecoder, model: PreTrainedModel, kv: KVShape, max_context: int) -> bool:
    """Return whether the fused pass computes what the model's own does, for a few tokens."""
    tokens = _probe_tokens(model, max_context)
    plain = _through_slots(model, kv, tokens)

    def run(flat: list[int], positions: Sequence[int], batch: FlatBatch) -> Tensor:
        rows = torch.tensor([flat, [*positions]], device=model.device)
        return fused.forward(rows[0], rows[1], batch, None, frozenset())[0]

    # Each is rounded in its own way, and both errors add up: SmolLM2's in bfloat16 to 0.057, with each 0.03 and 0.06
    # from float32. A layer that lacks its MLP makes it 0.35.
    return _difference(_through_slots(model, kv, tokens, run), plain) <= 2 * _TOLERANCE.get(kv.dtype, 0.05)


@contextmanager
def _narrow_windows(model: PreTrainedModel) -> Iterator[None]:
    """Make sliding windows so narrow that a few tokens reach beyond them.

    Some architectures have their window in the mask alone, which slots replace: only such a text shows it.
    """
    owners: list[Any] = [model.config.get_text_config(), *model.modules()]
    # Pairs, not a dict: configs have no hash.
    widths = [(one, one.sliding_window) for one in owners if isinstance(getattr(one, "sliding_window", None), int)]
    try:
        for owner, _ in widths:
            owner.sliding_window = _PROBE_WINDOW
        yield
    finally:
        for owner, width in widths:
            owner.sliding_window = width


@torch.inference_mode()
def check_invariance(model: PreTrainedModel, kv: KVShape, max_context: int) -> None:
    """Compare a few tokens in two passes with one a pass, bit for bit. Raises UsageError if they differ."""
    tokens = _probe_tokens(model, max_context)
    with BatchInvariance():
        together = _through_slots(model, kv, tokens, invariant=True)
        slot, alone = KVSlot(kv), []
        for token in tokens:
            segment = BatchSegment(slot, 1, DraftTree(), max_position=len(tokens))
            batch = FlatBatch([segment], invariant=True)
            alone.append(model(**_inputs([token], segment.positions, model), slots=batch).logits[0])
            slot.commit(1)
    if not torch.equal(together, torch.cat(alone).float()):
        raise UsageError(
            f"{model.config.model_type}: its passes cannot be made batch-invariant here: logits depend on how many rows"
            " a pass has; leave batch-invariant out"
        )


def _probe_tokens(model: PreTrainedModel, max_context: int) -> list[int]:
    vocab = model.config.get_text_config().vocab_size
    return [(7919 * i + 13) % vocab for i in range(min(_PROBE_TOKENS, max_context))]


def _difference(logits: Tensor, reference: Tensor) -> float:
    """Return how far the logits are from the reference, in its standard deviations."""
    return float((logits - reference).abs().mean() / reference.std().clamp_min(1e-6))


def _through_slots(
    model: PreTrainedModel,
    kv: KVShape,
    tokens: list[int],
    run: Callable[[list[int], Sequence[int], FlatBatch], Tensor] | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """Return logits [tokens, vocab] float32: a chain, then a tree with a wrong branch beside the right one.

    `run`: another pass than the model's own, from tokens, positions and batch to logits [rows, vocab].
    """
    slot = KVSlot(kv)
    vocab = model.config.get_text_config().vocab_size
    half = len(tokens) // 2
    answers = []
    for part, tree in ((tokens[:half], DraftTree()), (tokens[half : half + 1], _forked(tokens[half + 1 :], vocab))):
        segment = BatchSegment(slot, len(part), tree, max_position=slot.length + len(tokens))
        batch = FlatBatch([segment], invariant=invariant)
        flat = [*part, *tree.tokens]
        if run is None:
            logits = model(**_inputs(flat, segment.positions, model), slots=batch).logits[0]
        else:
            logits = run(flat, segment.positions, batch)
        path = range(1, len(tree)) if len(tree) else range(0)
        slot.commit(len(part), path)
        answers.append(logits[: len(part)])
        answers.append(logits[[len(part) + node for node in path]])
    return torch.cat(answers).float()


def _forked(tokens: list[int], vocab_size: int) -> DraftTree:
    """Return a tree in which node 0 is a dead end, and `tokens` follow as nodes 1, 2, ..."""
    if not tokens:
        return DraftTree()
    wrong = (tokens[0] + 1) % vocab_size
    return DraftTree((wrong, *tokens), (-1, -1, *range(1, len(tokens))))


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


def _check_windows(kind: str, config: Any, recorder: _Recorder) -> None:
    """Raise UsageError for a layer that is sliding by its config but passes no window."""
    for layer, layer_type in enumerate(getattr(config, "layer_types", None) or ()):
        if layer_type == "sliding_attention" and recorder.windows.get(layer) is None:
            raise UsageError(f"{kind}: layer {layer} is a sliding-window layer but passes no window to its attention")


def _inputs(tokens: list[int], positions: list[int], model: PreTrainedModel) -> dict[str, Any]:
    rows = torch.tensor([tokens, positions], device=model.device)
    # An index, not 0: with a number Gemma 4 cuts rows before its last layers, which transformers 5.23 fails at without
    # per-layer embeddings.
    keep = torch.arange(len(tokens), device=model.device)
    return {"input_ids": rows[:1], "position_ids": rows[1:], "use_cache": False, "logits_to_keep": keep}
