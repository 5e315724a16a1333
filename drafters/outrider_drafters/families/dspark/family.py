"""DSpark from published files, and its declaration: DFlash's block, each node scored by its parent's Markov term.

With a threshold, a draft ends below the nodes after which the confidence head gives less: a chain where it does first,
as published, a tree node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.dflash import layout
from outrider_drafters.families.dflash.family import FAMILY as DFLASH
from outrider_drafters.families.dflash.family import MAPS, DFlashDrafter, DFlashState
from outrider_drafters.families.dflash.network import DFlashSizes, DFlashTap
from outrider_drafters.families.dspark.network import DSpark, DSparkHeads, MarkovKind
from outrider_drafters.families.shared_layout import check_vocabulary
from outrider_proto.tree import ROOT, DraftTree

NAME = "dspark"


class DSparkDrafter(DFlashDrafter):
    """Client half; the server half is DFlashTap."""

    family = NAME

    def __init__(
        self, network: DSpark, target: TargetWeights, plan: TreePlan | None = None, threshold: float = 0.0
    ) -> None:
        super().__init__(network, target, plan)
        self.threshold = threshold if network.confidence_head is not None else 0.0
        self.markov, self.confidence = network.markov_head, network.confidence_head
        self.rank, self.passes_root = network.heads.rank, network.heads.passes_root
        self._w1 = self._w2 = None
        if self.markov is not None:
            # The same rows as lm_head's.
            self._w2 = target.head_for(self.markov.markov_w2.weight, network.draft_tokens)
            self._w1 = self.markov.markov_w1.weight.detach()

    def new_state(self) -> DSparkState:
        return DSparkState(self)

    def before(self, tokens: Sequence[int]) -> Tensor:
        """Look up w1's rows [n, rank] of the tokens before some slots."""
        if self._w1 is None:
            return self.embed.new_empty(len(tokens), 0)
        return F.embedding(torch.tensor(tokens, device=self.embed.device), self._w1)

    def bias(self, z: Tensor) -> Tensor:
        """Compute w2 z [n, Vd] float32 of z [n, rank]."""
        assert self._w2 is not None
        return self._w2.drafted(z)


class DSparkState(DFlashState):
    """As DFlash's, with the Markov head's states."""

    def __init__(self, drafter: DSparkDrafter) -> None:
        super().__init__(drafter)
        self._dspark = drafter
        self._states = drafter.embed.new_zeros(1, drafter.rank)  # before a block, then after the root and draft rows

    def _begin(self, tree: DraftTree) -> None:
        self._states = self._states[:1]
        super()._begin(tree)

    def _draft_logits(self, nodes: Sequence[int]) -> Tensor:
        logits, drafter = self._level_logits(nodes), self._dspark
        if drafter.confidence is None or not drafter.threshold:
            return logits
        confidence = drafter.confidence(self._hidden_of(nodes), drafter.before(self._tokens_of(nodes)))
        return logits.masked_fill((confidence < drafter.threshold)[:, None], -torch.inf)

    def _level_logits(self, nodes: Sequence[int]) -> Tensor:
        logits, drafter = super()._level_logits(nodes), self._dspark
        if drafter.markov is None:
            return logits
        before, states = drafter.before(self._tokens_of(nodes)), self._states_before(nodes)
        z, after = drafter.markov.step(before, self._hidden_of(nodes), states)
        self._states = torch.cat((self._states, after))
        return logits + drafter.bias(z)

    def _states_before(self, nodes: Sequence[int]) -> Tensor:
        """Return the states [n, rank] before the nodes' slots."""
        roots = [place for place, node in enumerate(nodes) if self._slots[node].row == 0]
        states = self._states[[0 if self._slots[node].row == 0 else 2 + self._parents[node] for node in nodes]]
        # speculators' Markov head runs over a root's row that does not draft all the same, with the root before it.
        if roots and self._dspark.network.sizes.first_row and self._dspark.passes_root:
            assert self._dspark.markov is not None
            begun = [nodes[place] for place in roots]
            before = self._dspark.before(self._tokens_of(begun))
            hidden = self._hidden[[self._slots[node].block for node in begun], 0]
            states[roots] = self._dspark.markov.step(before, hidden, states[roots])[1]
        return states

    def _tokens_of(self, nodes: Sequence[int]) -> list[int]:
        return [self._token_state.tokens[-1] if node == ROOT else self._tokens[node] for node in nodes]

    def _hidden_of(self, nodes: Sequence[int]) -> Tensor:
        """Return the blocks' rows [n, E] of the nodes' slots."""
        return self._in_slots(self._hidden[:, self._dspark.network.sizes.first_row :], nodes)


CONFIDENCE = DrafterOption.number(
    "confidence", "end a draft where the confidence head gives less (0: draft whole blocks)", most=1
)
W1 = "markov_head.markov_w1.weight"
PROJ = "confidence_head.proj.weight"


def load_network(files: DrafterFiles, target: TargetSizes) -> DSpark:
    """Load the network. Raises UsageError for what is not made for this target, or not understood."""
    files = layout.canonical(files)
    sizes = layout.read_sizes(files, target)
    heads = _read_heads(files, sizes)
    network = files.build(lambda: DSpark(sizes, heads), also_known=MAPS)
    check_vocabulary(files, sizes.head_rows, target.vocab)
    return network


def _read_heads(files: DrafterFiles, sizes: DFlashSizes) -> DSparkHeads:
    """Read the heads' sizes from tensors; what config.json says of them must agree."""
    if files.config.get(layout.MARKOV_RANK) is None and layout.layout_of(files) == "z-lab":
        raise files.fault(f"DSpark's heads, but config.json has no {layout.MARKOV_RANK}")
    rank = files.checkpoint.matrix(W1)[1] if W1 in files.names else 0
    said = files.config.get(layout.MARKOV_RANK)
    # A missing rank is 256 in speculators' code.
    if said is not None and said != rank:
        raise files.fault(f"{layout.MARKOV_RANK}={said}: {W1} has {rank} columns" if rank else f"lacks tensors {W1}")
    kind = files.config.get("markov_head_type") or "vanilla"
    if kind not in get_args(MarkovKind):
        raise files.fault(f"markov_head_type={kind}: need one of {', '.join(get_args(MarkovKind))}")
    confidence = _confidence(files, sizes.shape.width, rank)
    return DSparkHeads(rank, cast(MarkovKind, kind), confidence, passes_root=layout.layout_of(files) != "z-lab")


def _confidence(files: DrafterFiles, width: int, rank: int) -> Literal["none", "hidden", "hidden and token"]:
    if PROJ not in files.names:
        if files.config.get(layout.CONFIDENCE_HEAD):
            raise files.fault(f"lacks tensors {PROJ}")
        return "none"
    columns = files.checkpoint.matrix(PROJ)[1]
    reads_token = bool(files.config.get("confidence_head_with_markov", columns != width))
    need = width + (rank if reads_token else 0)
    if columns != need:
        raise files.fault(f"{PROJ} has {columns} columns: need {need}, confidence_head_with_markov={reads_token}")
    return "hidden and token" if reads_token else "hidden"


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> DSparkDrafter:
    network = load_network(files, target.sizes)
    threshold = files.options.get(CONFIDENCE) or 0.0
    if threshold and network.confidence_head is None:
        raise files.fault(f"confidence={threshold}: it has no confidence head")
    return DSparkDrafter(network, target, layout.default_plan(files, network.sizes.num_drafts), threshold)


FAMILY = replace(
    DFLASH,
    name=NAME,
    recognizes=lambda files: layout.family_of(files) == NAME,
    drafter=_load_drafter,
    tap=lambda files, target, like: DFlashTap(load_network(files, target), like),
    options=(*DFLASH.options, CONFIDENCE),
)
