"""Starts an EAGLE-1/2 network as the target's last layers behind a fitted fc (ours), instead of from random weights.

fc's pair of embed(x_{t+1}) and f_t stands for what enters the target's layer L - N at position t + 1, the best linear
guess of it, and the N blocks do with it what the target's do. EAGLE's states have the scale of the target's last
hidden state, after the final norm of weight w; with r the root mean square before that norm,

    u = w / r * entering        states between blocks, as EAGLE has them
    f = w / r * final           what the last block's output stands for

so what a block adds is multiplied by w / r and what it reads is divided by w, with one r for all positions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, RMSNorm
from outrider_drafters.families.eagle2.network import Eagle2
from outrider_models.training.core.interfaces import PADDING, Batch, TeacherOutput, TeacherRequest
from outrider_proto.errors import UsageError

_RIDGE = 1e-3  # of each input's own variance
_POSITIONS_PER_INPUT = 4  # with hardly more the fit learns them by heart, and guesses nothing else
_SAME = ("heads", "kv_heads", "head_dim", "mlp", "qkv_bias", "qk_norm")


def start_request(layers: int) -> TeacherRequest:
    """Return what the fit reads of the target."""
    return TeacherRequest(hidden=(-1, -1 - layers), last_layers=layers)


def start_from_target(network: Eagle2, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
    """Set all weights of a network from the target's last layers. Raises UsageError for others or too few examples."""
    count = len(network.layers)
    fit: _Fit | None = None
    for batch, output in examples:
        assert output.last_layers is not None
        check_shape(network.sizes.block, output.last_layers.shape, _SAME)
        fit = fit or _Fit(output.last_layers, count)
        fit.add(batch, output)
    assert fit is not None
    guess = fit.sums.solve()
    network.fc.weight.data.copy_(guess[:, :-1])
    assert network.fc.bias is not None
    network.fc.bias.data.copy_(guess[:, -1])
    first_scale = fit.first_scale(guess)
    for place, (block, source) in enumerate(zip(network.blocks, fit.last_layers.blocks, strict=True)):
        _start_block(block, source, fit, fit.norm_scale if place else first_scale, is_first=place == 0)


class LeastSquares:
    """Linear guesses of rows from rows, from sums over all that were added."""

    def __init__(self) -> None:
        self._rows, self._squares, self._products = 0, torch.zeros(()), torch.zeros(())

    @property
    def squares(self) -> Tensor:
        """Sum of the inputs' products with each other [I, I], float64."""
        return self._squares

    def add(self, inputs: Tensor, wanted: Tensor) -> None:
        """Add rows: inputs [n, I], wanted [n, O]."""
        # Sums of thousands of products of all sizes: in float32 the solution would lose most digits.
        inputs, wanted = inputs.double(), wanted.double()
        self._rows += len(inputs)
        self._squares = self._squares.to(inputs) + inputs.T @ inputs
        self._products = self._products.to(inputs) + inputs.T @ wanted

    def solve(self) -> Tensor:
        """Return the guess [O, I]. Raises UsageError for too few rows."""
        if self._rows < (needed := _POSITIONS_PER_INPUT * len(self._squares)):
            raise UsageError(
                f"drafter.init=target: {self._rows} tokens of text: fitting fc takes {needed}: need more chats"
            )
        ridge = torch.diag(self._squares.diagonal() * _RIDGE)
        solution: Tensor = torch.linalg.solve(self._squares + ridge, self._products)
        return solution.T.float()


@dataclass(slots=True)
class _Fit:
    """The linear guess, and the scales that the blocks need."""

    last_layers: LastLayers
    count: int
    sums: LeastSquares = field(default_factory=LeastSquares)  # whose guess [E, 2 E + 1] is u of embedding, feature, 1
    _inverse_sizes: list[Tensor] = field(default_factory=list)
    _inputs: Tensor | None = None  # of the last example

    @property
    def weight(self) -> Tensor:
        """The final norm's weight [E]."""
        return self.last_layers.norm.weight.detach().float()

    @torch.no_grad()
    def add(self, batch: Batch, output: TeacherOutput) -> None:
        features, entering = output.hidden[-1].float(), output.hidden[-1 - self.count]
        final = self.last_layers.before_norm(entering).float()
        inverse = (final.pow(2).mean(-1, keepdim=True) + self.last_layers.norm.eps).rsqrt()
        inside = (batch.labels != PADDING)[:, 1:]
        embeds = F.embedding(batch.tokens[:, 1:], output.embed).float()
        inputs = torch.cat((embeds, features[:, :-1], torch.ones_like(embeds[..., :1])), dim=-1)[inside]
        wanted = (self.weight * entering.float() * inverse)[:, 1:][inside]
        self.sums.add(inputs, wanted)
        self._inverse_sizes.append(inverse[:, 1:][inside].flatten())
        self._inputs = inputs

    @property
    def added_scale(self) -> Tensor:
        """Scale [E] of what a block adds."""
        return self.weight * torch.cat(self._inverse_sizes).median()

    def first_scale(self, guess: Tensor) -> Tensor:
        """Return the scale [E] of what the first block reads, which EAGLE's layout gives no norm."""
        assert self._inputs is not None
        states = self._inputs.float() @ guess.T / self.weight
        return states.pow(2).mean(-1).rsqrt().median() / self.weight

    @property
    def norm_scale(self) -> Tensor:
        """Scale [E] of the blocks' norms: they divide by the size of states that w has stretched."""
        return self.weight.pow(2).mean().sqrt() / self.weight


@torch.no_grad()
def _start_block(block: LlamaBlock, source: LlamaBlock, fit: _Fit, input_scale: Tensor, *, is_first: bool) -> None:
    attention, theirs = block.self_attn, source.self_attn
    assert isinstance(source.input_layernorm, RMSNorm)
    into = source.input_layernorm.weight * input_scale
    pairs = ((attention.q_proj, theirs.q_proj), (attention.k_proj, theirs.k_proj), (attention.v_proj, theirs.v_proj))
    for projection, its in pairs:
        projection.weight.copy_(its.weight * into if is_first else its.weight)
        if projection.bias is not None:
            projection.bias.copy_(its.bias)
    if isinstance(block.input_layernorm, RMSNorm):
        block.input_layernorm.weight.copy_(into)
    block.post_attention_layernorm.weight.copy_(source.post_attention_layernorm.weight * fit.norm_scale)
    block.mlp.gate_proj.weight.copy_(source.mlp.gate_proj.weight)
    block.mlp.up_proj.weight.copy_(source.mlp.up_proj.weight)
    added = fit.added_scale.unsqueeze(-1)
    attention.o_proj.weight.copy_(theirs.o_proj.weight * added)
    block.mlp.down_proj.weight.copy_(source.mlp.down_proj.weight * added)


def check_shape(ours: BlockShape, theirs: BlockShape, names: Iterable[str]) -> None:
    """Raise UsageError where the drafter's layers differ from the target's in one of these."""
    for name in names:
        if getattr(ours, name) != getattr(theirs, name):
            raise UsageError(
                f"drafter.init=target: its layers have {name}={getattr(theirs, name)}, the drafter's "
                f"{name}={getattr(ours, name)}: need the same"
            )
