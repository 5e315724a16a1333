"""The client half of Medusa: all heads' logits from the newest feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.heads.state import HeadsState, TokenPath, default_choices
from outrider_drafters.families.heads.tap import newest_hidden_info
from outrider_drafters.families.medusa.network import NAME, Medusa, output_of


class MedusaDrafter:
    """Client half; the server half is NewestHiddenTap."""

    family = NAME
    stale_tolerant = False
    tree_in_one_pass = False
    knows_next = True

    def __init__(
        self, medusa: Medusa, target: TargetWeights, shared: Tensor | None = None, tokens: Tensor | None = None
    ) -> None:
        """`shared` [rows, E]: one output for all heads, unless they have their own. `tokens` [k] int64: the only ones
        to draft; an output has a row for each of them, or for the whole vocabulary."""
        sizes = medusa.sizes
        self.target = target
        self.like = target.embed
        self.tap = newest_hidden_info(sizes.hidden)
        self.vocab_size = target.sizes.vocab
        self.num_heads = sizes.heads
        self.plan: TreePlan | None = default_choices(sizes.heads)
        self._blocks = [head[: sizes.blocks] for head in medusa.heads]
        common = target.lm_head if shared is None else shared
        outputs = [output_of(head) for head in medusa.heads] if sizes.rows else [common]
        self._tokens = None if tokens is None else tokens.to(self.like.device)
        self._outputs = [_kept(output, self._tokens) for output in outputs]

    def new_state(self) -> HeadsState:
        return HeadsState(self)

    def read(self, feature: Tensor) -> MedusaLogits:
        return MedusaLogits(self, feature)

    @property
    def has_common_output(self) -> bool:
        return len(self._outputs) < self.num_heads

    def next_logits(self, feature: Tensor) -> Tensor:
        """Compute the target's own logits [1, V] from its lm_head."""
        return F.linear(feature, self.target.lm_head).float()

    def logits(self, feature: Tensor, heads: range) -> Tensor:
        """Compute the logits [heads, V] of one head with its own output, or of several that share one."""
        mixed = torch.cat([self._blocks[head](feature) for head in heads])
        logits = F.linear(mixed, self._outputs[0 if self.has_common_output else heads.start]).float()
        if self._tokens is None:
            return logits
        # -inf, not 0: tokens outside the map can never be drafted, and log-softmax is then over the map alone.
        return logits.new_full((len(heads), self.vocab_size), -torch.inf).index_copy_(1, self._tokens, logits)


class MedusaLogits:
    """Logits of all heads from one feature. A shared output is read once for all heads: memory traffic is the cost."""

    def __init__(self, drafter: MedusaDrafter, feature: Tensor) -> None:
        self._drafter = drafter
        self._feature = feature
        self._together: Tensor | None = None  # [heads, V]

    def after(self, lines: Sequence[TokenPath]) -> Tensor:
        """Return the same logits for every path: Medusa's heads do not see drafted tokens."""
        return self._of(len(lines[0]) - 1).expand(len(lines), -1)

    def _of(self, head: int) -> Tensor:
        """Return a head's logits [1, V]; the target's own for -1."""
        if head < 0:
            return self._drafter.next_logits(self._feature)
        if not self._drafter.has_common_output:
            return self._drafter.logits(self._feature, range(head, head + 1))
        if self._together is None:
            self._together = self._drafter.logits(self._feature, range(self._drafter.num_heads))
        return self._together[head : head + 1]


def _kept(output: Tensor, tokens: Tensor | None) -> Tensor:
    """Cut an output to the rows of the tokens that are drafted."""
    return output if tokens is None or len(output) == len(tokens) else output[tokens]
