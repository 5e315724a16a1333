"""An independent drafter: any small causal language model with the target's tokens, in Hugging Face's layout.

It wants nothing of the target but its tokens, so it drafts online and offline alike. `tie_to_target=true` gives it the
target's embedding and lm_head instead of its own: the independent baseline of the MoA paper was trained so
(huawei-noah/HEBO, branch mixture-of-attentions, moa_spec/models/train/independent.py), though its files hold others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.scratch import Scratch
from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import ENDLESS, Drafter
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan
from outrider_drafters.families.family import Family
from outrider_drafters.families.independent.network import CausalCache, CausalModel, num_embeddings
from outrider_drafters.families.independent.vocabulary import check_vocabulary, fit_logits
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "independent"
ARCHITECTURES = ("ForCausalLM", "LMHeadModel")
PREFIXES = ("model.", "transformer.", "gpt_neox.", "language_model.")  # under which such a model keeps its layers
FAR = 4 * MAX_LEVELS  # levels: no draft comes so far
CHUNK = 512  # tokens a pass: a longer one's mask and scores would grow with its square


class IndependentDrafter:
    """Client half; there is no other."""

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one = True

    def __init__(self, model: CausalModel, vocab_size: int) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.plan: TreePlan | None = None

    def new_state(self) -> IndependentState:
        return IndependentState(self)


class IndependentState(WithTokenState):
    """The model's cache over the tokens; expanded nodes' rows follow. See drafter.DraftState."""

    def __init__(self, drafter: IndependentDrafter) -> None:
        self._drafter = drafter
        self._record = TokenState(NO_FEATURES.width)
        self._cache = CausalCache()
        self._scratch = Scratch(drafter.model.model.device)
        self._num_standing = 0  # rows of the cache that are tokens'; scratch rows follow

    @property
    def reach(self) -> int:
        """As many levels as its own context has positions for, since some models have none beyond. ENDLESS while that
        end is far."""
        limit = self._drafter.model.max_context
        left = ENDLESS if limit is None else max(0, limit - self.num_tokens + 1)
        return left if left <= FAR else ENDLESS

    def add_features(self, first: int, rows: Tensor) -> None:
        self._record.take(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._record.rollback(num_tokens)
        self._num_standing = min(self._num_standing, num_tokens)

    def root_logits(self) -> Tensor:
        self._record.need_root()
        if not self.reach:
            limit = self._drafter.model.max_context
            raise UsageError(f"{NAME}: the text has {self.num_tokens} tokens, the drafter's context {limit}")
        self._scratch.clear()
        first = min(self._num_standing, self.num_tokens - 1)  # the root at least: its logits are needed
        self._cache.truncate(first)
        for start in range(first, self.num_tokens, CHUNK):
            stop = min(start + CHUNK, self.num_tokens)
            logits = self._run(self._record.tokens[start:stop], range(start, stop), None, last_only=True)
        self._num_standing = self.num_tokens
        return logits[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, mask = self._scratch.add(parents, self._num_standing)
        return self._run(tokens, (depths + (self.num_tokens - 1)).tolist(), mask, last_only=False)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        root = self.root_logits().unsqueeze(0)
        return torch.cat((root, self.expand(tree.tokens, tree.parents))) if tree.tokens else root

    def _run(self, tokens: Sequence[int], positions: Sequence[int], mask: Tensor | None, *, last_only: bool) -> Tensor:
        model = self._drafter.model
        # A token beyond its own vocabulary is padding that the target chose all the same; it reads another instead.
        known = [min(token, model.num_rows - 1) for token in tokens]
        return fit_logits(model.run(known, positions, self._cache, mask, last_only), self._drafter.vocab_size)


def _recognizes(files: DrafterFiles) -> bool:
    """A whole language model; one that is also something more was taken by that family before."""
    named = any(str(name).endswith(ARCHITECTURES) for name in files.config.get("architectures") or ())
    return named and any(name.startswith(PREFIXES) for name in files.names)


def _load(files: DrafterFiles, frozen: TargetWeights) -> Drafter:
    tied = bool(files.options.tie_to_target)

    def prepare(model: PreTrainedModel) -> set[str]:
        if tied:
            return _tie(model, files, frozen)
        check_vocabulary(files, num_embeddings(model), frozen)
        return set()

    return IndependentDrafter(CausalModel.load(files.directory, frozen.embed, prepare), frozen.sizes.vocab)


def _tie(model: PreTrainedModel, files: DrafterFiles, frozen: TargetWeights) -> set[str]:
    """Put the target's embedding and lm_head in place of its own; answers with the names of its own."""
    files.need_equal("hidden size", model.config.get_text_config().hidden_size, frozen.sizes.hidden)
    accessors: Any = model  # transformers' are partly untyped
    own = (accessors.get_input_embeddings().weight, accessors.get_output_embeddings().weight)
    names = {name for name, tensor in model.named_parameters(remove_duplicate=False) if any(tensor is o for o in own)}
    embedding = nn.Embedding(frozen.sizes.vocab, frozen.sizes.hidden, device="meta")
    embedding.weight = nn.Parameter(frozen.embed, requires_grad=False)
    head = nn.Linear(frozen.sizes.hidden, frozen.sizes.vocab, bias=False, device="meta")
    head.weight = nn.Parameter(frozen.lm_head, requires_grad=False)
    accessors.set_input_embeddings(embedding)
    accessors.set_output_embeddings(head)
    return names


FAMILY = Family(
    name=NAME,
    eats="nothing",
    offline="goes on",
    trees="dynamic",
    recognizes=_recognizes,
    drafter=_load,
    tap=lambda files, target, like: None,
    keeps=lambda name: True,
    options=("tie_to_target",),
)
