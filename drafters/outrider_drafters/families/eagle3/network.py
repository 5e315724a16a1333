"""EAGLE-3's network (arXiv 2503.01840; SafeAILab/EAGLE, cnets.py), and its variants.

g_t = fc(concat of the target's hidden states)   on the server; EAGLE 3.1 norms them first, each or all together
y_t = g_t + attention(concat[input_layernorm(embed(x_{t+1})), hidden_norm(g_t)])      RoPE position t
out_t = y_t + mlp(post_attention_layernorm(y_t))      plain decoder layers may follow, of out_t's width
logits of x_{t+2} = lm_head(norm(out_t))         over the draft vocabulary

out_t stands in for g_{t+1} when drafting goes on: as it is, or after the norm (norm_output).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import LlamaBlock, RMSNorm, causal_mask, initialize
from outrider_drafters.checkpoints.draft_vocabulary import draft_tokens, membership, offsets
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import BEFORE_NORM, Activations, StatelessTap, last_hidden_info
from outrider_drafters.families.eagle3.layer import Eagle3Sizes, PairLayer, TrainStepCache, take_rows
from outrider_drafters.families.shared_layout import STEPS
from outrider_drafters.readers.checkpoint import write_model
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo


@dataclass(frozen=True, slots=True, eq=False)
class TrainStep:
    """A step of the training-time test: row t (or R chosen) predicts token t + 2 + step; the last mean nothing."""

    hidden: Tensor  # [B, T, H] before the norm
    normed: Tensor  # [B, T, H]: for the head


class Eagle3(nn.Module):
    """The trained part; submodules are named as in SafeAILab's files."""

    d2t: Tensor

    def __init__(self, sizes: Eagle3Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        count, fused = len(sizes.target_layers), len(sizes.target_layers) * sizes.target_hidden
        self.fc = nn.Linear(fused, sizes.hidden, bias=sizes.fc_bias) if count else None
        eps = sizes.block.eps
        norms = [RMSNorm(sizes.target_hidden, eps) for _ in range(count if sizes.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(norms)
        self.input_norm = RMSNorm(fused, eps) if sizes.input_norm else None
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden) if sizes.own_embedding else None
        self.midlayer = PairLayer(sizes)
        later = {str(i): LlamaBlock(sizes.block, out_bias=sizes.out_bias) for i in range(1, sizes.layers)}
        self.layers = nn.ModuleDict(later)  # by their numbers in the files that have several
        self.norm = RMSNorm(sizes.hidden, eps)
        self.lm_head = nn.Linear(sizes.hidden, sizes.draft_vocab, bias=False) if sizes.own_head else None
        if sizes.draft_vocab != sizes.vocab:
            self.register_buffer("d2t", torch.zeros(sizes.draft_vocab, dtype=torch.int64))
        self.apply(initialize)

    @property
    def draft_tokens(self) -> Tensor | None:
        """Target ids [Vd] of the draft ids; None where they are the same. Raises UsageError for a broken d2t."""
        return draft_tokens(self.d2t, self.sizes.vocab) if self.sizes.draft_vocab != self.sizes.vocab else None

    def set_draft_tokens(self, tokens: Tensor) -> None:
        """Set the target ids [Vd], rising, that the head drafts."""
        if len(tokens) != self.sizes.draft_vocab:
            raise UsageError(f"{len(tokens)} draft tokens: need draft_vocab={self.sizes.draft_vocab}")
        draft_tokens(offsets(tokens), self.sizes.vocab)  # raises for ids that d2t cannot express
        self.d2t.copy_(offsets(tokens))

    @property
    def later_layers(self) -> list[LlamaBlock]:
        """The layers after the first, plain ones."""
        return [layer for layer in self.layers.values() if isinstance(layer, LlamaBlock)]

    def fuser(self) -> Callable[[Tensor], Tensor]:
        """Return the server's part, which holds nothing of the rest: see `fuse`. The head must have an fc."""
        fc, each, together = self.fc, list(self.fc_norm), self.input_norm
        assert fc is not None

        def fused(states: Tensor) -> Tensor:
            if each:
                parts = states.chunk(len(each), dim=-1)
                states = torch.cat([norm(part) for norm, part in zip(each, parts, strict=True)], dim=-1)
            return fc(states if together is None else together(states))  # type: ignore[no-any-return]  # nn.Module.__call__ is Any

        return fused

    def fuse(self, states: Tensor) -> Tensor:
        """Compute g [..., H] from concatenated hidden states [..., k Ht], in the order of target_layers."""
        return self.fuser()(states) if self.sizes.target_layers else states

    def forward_train(
        self, embeds_next: Tensor, fused: Tensor, steps: int, mask: Tensor | None = None, chosen: Tensor | None = None
    ) -> list[TrainStep]:
        """Run the training-time test (paper, 3.2): step k has outputs of step k - 1 for features, a position on.

        embeds_next [B, T, H] of tokens t + 1, fused [B, T, H] of positions t; in step k row t pairs token t + 1 + k
        (zeros past the end) with the output of step k - 1 at RoPE position t + k. mask: which true rows a row sees,
        bool [T, T] or broadcast to [B, 1, 1, T, T]; None for causal. Padding belongs at the end. chosen [B, R] int64:
        compute the outputs of these rows only, [B, R, H]; the others are seen and nothing more (`mask` must be None).
        Raises UsageError for a head of several layers.
        """
        if self.later_layers:
            raise UsageError(f"a head of {self.sizes.layers} layers: only those of one are trained")
        length, device = fused.shape[1], fused.device
        positions = torch.arange(length, device=device)
        if chosen is not None:
            mask = (positions <= chosen.unsqueeze(-1))[:, None, None]
        seen = TrainStepCache(causal_mask(length, device) if mask is None else mask)
        made: list[TrainStep] = []
        features = fused
        for step in range(steps):
            # Shifted, not sliced: every step keeps T rows, the last `step` of which are meaningless.
            embeds = nn.functional.pad(embeds_next[:, step:], (0, 0, 0, min(step, length)))
            if chosen is None or step == 0:
                hidden = self.midlayer(embeds, features, self.sizes.block.rope(positions + step), seen, chosen)
            else:
                rope = self.sizes.block.rope(chosen + step).for_heads()
                hidden = self.midlayer(take_rows(embeds, chosen), features, rope, seen)
            normed = self.norm(hidden)
            made.append(TrainStep(hidden, normed))
            features = normed if self.sizes.norm_output else hidden
        return made

    def export(
        self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, steps: int | None = None
    ) -> None:
        """Write SafeAILab's layout; `steps`: of its own output, that it was trained over, where that is known."""
        trained = {} if steps is None else {STEPS: steps}
        write_model(directory, self._config(target) | trained, self._tensors(), dtype)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self.state_dict()
        if (tokens := self.draft_tokens) is not None:
            tensors["t2d"] = membership(tokens, self.sizes.vocab)
        return tensors

    def _config(self, target: TargetSizes) -> dict[str, object]:
        sizes, block = self.sizes, self.sizes.block
        return (
            self._llama_config(target)
            | self._switches()
            | {
                "architectures": ["LlamaForCausalLMEagle3"],
                "rope_theta": block.rope_theta,
                "rope_scaling": None if block.rope_scaling is None else block.rope_scaling.as_config(),
                # The published key has two meanings (see layout.py), this one has one; both are read.
                "target_layers": list(sizes.target_layers),
                "eagle_config": {
                    "eagle_aux_hidden_state_layer_ids": list(sizes.target_layers),
                    "use_aux_hidden_state": bool(sizes.target_layers),
                },
            }
        )

    def _switches(self) -> dict[str, object]:
        sizes = self.sizes
        return {
            "target_hidden_size": sizes.target_hidden,
            "draft_vocab_size": sizes.draft_vocab,
            "norm_before_residual": sizes.norm_before_residual,
            "norm_before_fc": sizes.input_norm,
            "fc_norm": sizes.fc_norm,
            "norm_output": sizes.norm_output,
        }

    def _llama_config(self, target: TargetSizes) -> dict[str, object]:
        sizes, block = self.sizes, self.sizes.block
        return {
            "model_type": "llama",
            **block.as_config(sizes.layers, target.max_context, sizes.vocab),
            "attention_bias": block.qkv_bias,
        }


NAME = "eagle3"


def tap_info(eagle: Eagle3, target_layers: int) -> TapInfo:
    """Describe the features, named after the weights that fuse them, as stored, and the tapped layers."""
    sizes = eagle.sizes
    if not sizes.target_layers:
        return last_hidden_info(sizes.target_hidden)
    fusing = {name: tensor for name, tensor in eagle.state_dict().items() if name.startswith(("fc", "input_norm"))}
    numbers = torch.tensor([sizes.block.eps, target_layers, *sizes.target_layers], dtype=torch.float64)
    return TapInfo(f"eagle3:{tensors_fingerprint({**fusing, 'numbers': numbers})}", NAME, sizes.hidden)


class Eagle3Tap(StatelessTap):
    """Server half: hidden states of several layers, fused to one row per token of H values."""

    needs_kv = False

    def __init__(self, eagle: Eagle3, num_layers: int, like: Tensor) -> None:
        """The weights take the type and device of `like`."""
        self.info = tap_info(eagle, num_layers)  # of the weights as stored: before the cast
        eagle = eagle.to(like.device, like.dtype)
        self._layers = tuple(BEFORE_NORM if layer == num_layers else layer for layer in eagle.sizes.target_layers)
        self.hidden_layers = tuple(dict.fromkeys(self._layers))
        self._fuse, self._like = eagle.fuser(), eagle.norm.weight

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        return self._fuse(torch.cat([acts.hidden[layer] for layer in self._layers], dim=-1).to(self._like)).float()
