"""An attention that is wrong anywhere is refused at load in every type; rounding is not, however deep the model is."""

from functools import cache

import pytest
import torch
from tiny_targets import SIZES, WINDOW
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from outrider_drafters.blocks.float32_arithmetic import Float32Arithmetic
from outrider_drafters.families.independent.network import CausalModel
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import IMPLEMENTATION, FlatBatch
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.compatibility import _difference, _own_logits, check_against_eager
from outrider_server.engine.fused_decoder import FusedDecoder
from outrider_server.engine.target import Target
from outrider_server.kv.slot import KVSlot

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
DEPTHS = (2, 28)
_rotate = Gemma3RotaryEmbedding.forward
_attend, _bits, _commit, _begin = FlatBatch.attend, BatchSegment.row_bits, KVSlot.commit, BatchSegment.__init__


def random_model(kind: str, layers: int, dtype: torch.dtype) -> PreTrainedModel:
    """One with biases and norms that matter, and windows in every other layer where the architecture has any."""
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
    sizes = SIZES | {"num_hidden_layers": layers, "hidden_size": 48}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **special[kind]))
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "sinks")):
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model.to(dtype).eval()


target_of = cache(lambda *kind: Target.of(random_model(*kind), fused=False))


def call(**changes):
    """`changes`: functions of a call's old parameter, and of whether its layer is the last."""

    def attend(self, layer, query, key, value, call):
        last = layer == len(self.segments[0].slot.shape.rows) - 1
        parts = {name: getattr(call, name) for name in ("scaling", "softcap", "window", "sinks")}
        parts |= {name: change(parts[name], last) for name, change in changes.items()}
        return _attend(self, layer, query, key, value, AttentionCall(**parts))

    return FlatBatch, "attend", attend


def heads(before=lambda query: query, after=lambda out: out):
    return FlatBatch, "attend", lambda self, layer, query, *rest: after(_attend(self, layer, before(query), *rest))


def sight(change):
    """`change`: of the rows that a row sees, as bits, given its number and that of the chain's rows."""
    return BatchSegment, "row_bits", lambda self: [change(*each, self.num_chain) for each in enumerate(_bits(self))]


def places(change):
    """`change`: of a node's position, given its number and the root's position."""

    def begin(self, slot, num_chain, *rest, **more) -> None:
        _begin(self, slot, num_chain, *rest, **more)
        root, nodes = self.positions[num_chain - 1], enumerate(self.positions[num_chain:])
        self.positions[num_chain:] = [change(node, position, root) for node, position in nodes]

    return BatchSegment, "__init__", begin


def rotated_as_others(self, x, position_ids, layer_type):
    if self.config._attn_implementation == IMPLEMENTATION:
        (layer_type,) = {"sliding_attention", "full_attention"} - {layer_type}
    return _rotate(self, x, position_ids, layer_type)


def off_by(more: int):
    return call(window=lambda window, _: window and window + more)


WRONG = {
    "sees the next token": ("gemma2", sight(lambda row, seen, chain: seen | (2 << row) * (row + 1 < chain))),
    "a node sees its sibling": ("gemma2", sight(lambda row, seen, _: seen | (1 << row >> 1))),
    "a node loses its ancestors":
        ("gemma2", sight(lambda row, seen, chain: seen if row < chain else (1 << chain) - 1 | 1 << row)),
    "a node sees its uncle":
        ("gemma2", sight(lambda row, seen, chain: seen | (1 << row - 2 if row > chain + 1 else 0))),
    "a node beside it loses its parent":
        ("gemma2", sight(lambda row, seen, chain: seen & ~(1 << row - 1) if row > chain else seen)),
    "window too wide": ("gemma2", off_by(1)),
    "window too narrow": ("gemma2", off_by(-1)),
    "window ignored": ("gemma3_text", call(window=lambda *_: None)),
    "window in the other layers": ("gemma3_text", call(window=lambda window, _: None if window else 5)),
    "scale missing": ("gemma2", call(scaling=lambda *_: 1.0)),
    "scale without its root": ("gemma2", call(scaling=lambda scale, _: scale**2)),
    "scale of the last layer alone": ("llama", call(scaling=lambda scale, last: scale * (1.2 if last else 1))),
    "soft cap ignored": ("gemma2", call(softcap=lambda *_: None)),
    "sinks ignored": ("gpt_oss", call(sinks=lambda *_: None)),
    "tree a position late": ("llama", places(lambda node, position, root: position + 1)),
    "positions are rows' numbers": ("llama", places(lambda node, position, root: root + 1 + node)),
    "nodes share a position": ("llama", places(lambda node, position, root: root + 1)),
    "rotated as the other layers": ("gemma3_text", (Gemma3RotaryEmbedding, "forward", rotated_as_others)),
    "heads grouped in the wrong order":
        ("llama", heads(before=lambda query: query.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2))),
    "head lost": ("llama", heads(after=lambda out: out.index_fill(2, torch.tensor([1]), 0.0))),
    "other rows committed":
        ("llama", (KVSlot, "commit", lambda self, chain, path=(): _commit(self, chain, range(len(path))))),
}  # fmt: skip


@every_type
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_attention_is_refused(monkeypatch, wrong, dtype):
    kind, change = WRONG[wrong]
    for layers in DEPTHS:
        model = target_of(kind, layers, dtype).model
        with monkeypatch.context() as patched:
            patched.setattr(*change)
            with pytest.raises(UsageError, match="slots do not reproduce"):
                Target.of(model, fused=False)


FUSED = {
    "norms of heads lost": ("qwen3", lambda layers: [setattr(layer, "_head_norms", []) for layer in layers]),
    "biases lost": ("qwen2", lambda layers: [layer.qkv.bias.zero_() for layer in layers]),
    "windows lost": ("qwen2", lambda layers: [setattr(layer.call, "window", None) for layer in layers]),
    "scale of the last layer": ("llama", lambda layers: setattr(layers[-1].call, "scaling", 0.5)),
    "heads of the last layer": ("llama", lambda layers: layers[-1].qkv.bias.copy_(layers[-1].qkv.bias.roll(8))),
    "norm of the last layer": ("llama", lambda layers: setattr(layers[-1], "_mlp_norm", layers[-1]._attention_norm)),
}


@every_type
@pytest.mark.parametrize("wrong", FUSED)
def test_a_wrong_fused_pass_does_not_serve(wrong, dtype):
    kind, spoil = FUSED[wrong]
    for layers in DEPTHS:
        accepted = target_of(kind, layers, dtype)
        decoder = FusedDecoder(accepted.model, packed=False)
        check_against_eager(accepted.model, accepted.kv, 512, decoder)
        spoil(decoder.layers)
        with pytest.raises(UsageError, match="slots do not reproduce"):
            check_against_eager(accepted.model, accepted.kv, 512, decoder)


def test_rounding_is_no_wrong_attention():
    """Queries and keys of Qwen2.5's have biases of a hundred: in bfloat16 a score is off by more than one."""
    model = random_model("qwen2", 28, torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            parameter.data *= 60
    Target.of(model)
    own = [_own_logits(model, list(range(3, 15))).detach()]
    with Float32Arithmetic():
        own.append(_own_logits(model, list(range(3, 15))).detach())
    assert _difference(*own) > 0.1
    CausalModel(model)


def test_a_type_whose_passes_are_wrong_is_refused(monkeypatch):
    """As of a device whose kernels for it fail."""
    monkeypatch.setattr(*heads(before=lambda query: query * (0.5 if query.dtype == torch.float16 else 1)))
    with pytest.raises(UsageError, match=r"llama: in float16 its logits are off by .* serve it in float32"):
        Target.of(random_model("llama", 2, torch.float16))
