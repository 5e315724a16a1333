"""An attention that is wrong anywhere is refused at load in every type; rounding is not, however deep the model is."""

from functools import cache

import pytest
import torch
from tiny_targets import SIZES, WINDOW
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from outrider_drafters.blocks.float32_arithmetic import Float32Arithmetic
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.compatibility import _difference, _own_logits, agrees
from outrider_server.engine.fused_decoder import FusedDecoder
from outrider_server.engine.target import Target
from outrider_server.kv.slot import KVSlot

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEPTHS = (2, 28)
_attend, _bits, _commit = FlatBatch.attend, BatchSegment.row_bits, KVSlot.commit
_positioned = BatchSegment.__init__


@cache
def model_of(kind: str, layers: int, dtype: torch.dtype) -> PreTrainedModel:
    """Random, with biases and norms that matter, and windows in every other layer where the architecture has any."""
    torch.manual_seed(0)
    types = {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2), "sliding_window": WINDOW}
    special = {
        "llama": {"attention_bias": True},
        "qwen2": {**types, "use_sliding_window": True},
        "qwen3": {},
        "gemma2": {**types, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 2.0},
        "gemma3_text": {**types, "query_pre_attn_scalar": 4},
        "gpt_oss": {**types, "num_local_experts": 4, "num_experts_per_tok": 2},
    }
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **SIZES | {"num_hidden_layers": layers, "hidden_size": 48}, **special[kind])
    )
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "sinks")):
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model.to(dtype).eval()


def attend(change):
    """`change`: what becomes of a layer's number, its query heads [1, heads, n, dim] and its parameters."""

    def changed(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        query, call, head = change(layer, query, call, self.segments[0].slot.shape)
        out = _attend(self, layer, query, key, value, call)
        return out if head is None else out.index_fill(2, torch.tensor([head]), 0.0)

    return FlatBatch, "attend", changed


def call_of(call: AttentionCall, **changes) -> AttentionCall:
    parts = {"scaling": call.scaling, "softcap": call.softcap, "window": call.window, "sinks": call.sinks}
    return AttentionCall(**parts | changes)


def with_call(**changes):
    return attend(lambda _, query, call, __: (query, call_of(call, **{k: f(call) for k, f in changes.items()}), None))


def bits(change):
    return BatchSegment, "row_bits", lambda self: [change(self, row, seen) for row, seen in enumerate(_bits(self))]


def places(change):
    def begun(self, slot, num_chain, tree, max_position) -> None:
        _positioned(self, slot, num_chain, tree, max_position)
        root = self.positions[num_chain - 1]
        self.positions[num_chain:] = [change(root, node, at) for node, at in enumerate(self.positions[num_chain:])]

    return BatchSegment, "__init__", begun


def swapped(layer: int, query: Tensor, call: AttentionCall, _shape):
    return query, call_of(call, window=None if call.window else 5), None


def in_the_last(layer: int, query: Tensor, call: AttentionCall, shape):
    return query, call_of(call, scaling=call.scaling * (1.2 if layer == len(shape.rows) - 1 else 1)), None


def regrouped(layer: int, query: Tensor, call: AttentionCall, _shape):
    return query.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2), call, None


WRONG = {
    "sees the next token": (
        "gemma2",
        bits(lambda self, row, seen: seen | (2 << row if row + 1 < self.num_chain else 0)),
    ),
    "a node sees its sibling": ("gemma2", bits(lambda self, row, seen: seen | (1 << row >> 1))),
    "a node has lost its ancestors": (
        "gemma2",
        bits(lambda self, row, seen: seen if row < self.num_chain else (1 << self.num_chain) - 1 | 1 << row),
    ),
    "the window is too wide": ("gemma2", with_call(window=lambda call: call.window and call.window + 1)),
    "the window is too narrow": ("gemma2", with_call(window=lambda call: call.window and call.window - 1)),
    "the window is ignored": ("gemma3_text", with_call(window=lambda call: None)),
    "the window is in the other layers": ("gemma3_text", attend(swapped)),
    "the scale is missing": ("gemma2", with_call(scaling=lambda call: 1.0)),
    "the scale lacks its root": ("gemma2", with_call(scaling=lambda call: call.scaling**2)),
    "the soft cap is ignored": ("gemma2", with_call(softcap=lambda call: None)),
    "the sinks are ignored": ("gpt_oss", with_call(sinks=lambda call: None)),
    "a tree begins a position late": ("llama", places(lambda root, node, at: at + 1)),
    "a position is the row's number": ("llama", places(lambda root, node, at: root + 1 + node)),
    "all nodes share a position": ("llama", places(lambda root, node, at: root + 1)),
    "heads are grouped in the wrong order": ("llama", attend(regrouped)),
    "a head is lost": ("llama", attend(lambda _, query, call, __: (query, call, 1))),
    "other rows are committed": (
        "llama",
        (KVSlot, "commit", lambda self, num, path=(): _commit(self, num, range(len(path)))),
    ),
    "one layer's scale, the last one's": ("llama", attend(in_the_last)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_attention_is_refused(monkeypatch, wrong, dtype):
    kind, change = WRONG[wrong]
    for layers in DEPTHS:
        model = model_of(kind, layers, dtype)
        with monkeypatch.context() as patched:
            patched.setattr(*change)
            with pytest.raises(UsageError, match="slots do not reproduce"):
                Target.of(model, fused=False)
        Target.of(model, fused=False)


def norms(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    for layer in decoder.layers:
        layer._head_norms = []


def biases(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    for layer in decoder.layers:
        layer._qkv.bias = torch.zeros_like(layer._qkv.bias)


def windows(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    for layer in decoder.layers:
        layer._call.window = None if layer._call.window else WINDOW


def last_norm(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    decoder.layers[-1]._mlp_norm = decoder.layers[-1]._attention_norm


def last_scale(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    decoder.layers[-1]._call.scaling *= 1.2


def last_heads(decoder: FusedDecoder, model: PreTrainedModel) -> None:
    decoder.layers[-1]._qkv.weight = decoder.layers[-1]._qkv.weight.roll(8, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("qwen3", norms),
        ("qwen2", biases),
        ("qwen2", windows),
        *(("llama", one) for one in (last_norm, last_scale, last_heads)),
    ],
)
def test_a_wrong_fused_pass_does_not_serve(kind, spoil, dtype):
    for layers in DEPTHS:
        model = model_of(kind, layers, dtype)
        kv, decoder = Target.of(model, fused=False).kv, FusedDecoder(model, packed=False)
        assert agrees(decoder, model, kv, 512)
        spoil(decoder, model)
        assert not agrees(decoder, model, kv, 512)


def test_rounding_is_no_wrong_attention():
    """Queries and keys of Qwen2.5's have biases of a hundred: in bfloat16 a score is off by more than one."""
    model = model_of.__wrapped__("qwen2", 28, torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            parameter.data *= 60
    Target.of(model)
    tokens = list(range(3, 15))
    with torch.inference_mode():
        own = _own_logits(model, tokens)
        with Float32Arithmetic():
            assert _difference(own, _own_logits(model, tokens)) > 0.1


def test_a_type_whose_passes_are_wrong_is_refused(monkeypatch):
    """As of a device whose kernels for it fail."""
    model = model_of("llama", 2, torch.float16)
    spoiled = lambda _, query, call, __: (query * (0.5 if query.dtype == torch.float16 else 1), call, None)  # noqa: E731
    monkeypatch.setattr(*attend(spoiled))
    with pytest.raises(UsageError, match=r"llama: in float16 its logits are off by .* serve it in float32"):
        Target.of(model)
