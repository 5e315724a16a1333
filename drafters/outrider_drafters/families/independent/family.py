"""An independent drafter: any small causal language model with the target's tokens, in Hugging Face's layout.

It needs nothing of the target but its tokens, so it drafts online and offline alike. `tie_to_target=true` gives it the
target's embedding and lm_head in place of its own: the independent baseline of the MoA paper was trained so
(huawei-noah/HEBO, branch mixture-of-attentions, moa_spec/models/train/independent.py), though its files hold others.

Its state is a cache over the text, with the draft's rows behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.token_state import TokenState, TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits, select_rows
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter, WithTokenState
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import MAX_LEVELS
from outrider_drafters.families.family import Family
from outrider_drafters.families.independent.network import CausalCache, CausalModel, num_embeddings
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_TOKENIZER_BYTES
from outrider_proto.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "independent"
TOKENIZER = "tokenizer.json"
FAR = 4 * MAX_LEVELS  # levels, more than any draft has
CHUNK = 512  # tokens per pass: mask and scores grow with its square
TIE_TO_TARGET = DrafterOption.switch("tie_to_target", "use the target's embedding and lm_head")
ARCHITECTURES = ("ForCausalLM", "LMHeadModel")
PREFIXES = ("model.", "transformer.", "gpt_neox.", "language_model.")  # under which such a model keeps its layers


def check_vocabulary(files: DrafterFiles, rows: int, target: TargetWeights) -> None:
    """Raise UsageError unless a drafter with `rows` embeddings has the target's tokens, but for padding."""
    # Models of one family pad a tokenizer's vocabulary to different sizes (Qwen2.5: 151936 and 152064 rows for 151665
    # tokens). Tokens may not differ: a drafter with another tokenizer drafts nonsense without any error.
    ours, theirs = _words(files.directory), _words(target.directory)
    if ours is None or theirs is None:
        if rows != target.sizes.vocab:
            raise files.fault(
                f"vocabulary of {rows}, the target's has {target.sizes.vocab}: whether that is padding, only"
                f" {TOKENIZER} of both could tell"
            )
        return
    for token in sorted(ours.keys() & theirs.keys()):
        if ours[token] != theirs[token]:
            raise files.fault(f"token {token} is {ours[token]!r}, the target's is {theirs[token]!r}: another tokenizer")
    if theirs and max(theirs) >= rows:
        raise files.fault(f"vocabulary of {rows}: the target's tokenizer has token {max(theirs)}, too")


def fit_logits(logits: Tensor, vocab_size: int) -> Tensor:
    """Fit logits [n, rows] to [n, vocab_size]: cut off tokens the target lacks, -inf for those the drafter lacks."""
    rows = logits.shape[-1]
    return logits[..., :vocab_size] if rows >= vocab_size else F.pad(logits, (0, vocab_size - rows), value=-math.inf)


def _words(directory: Path | None) -> dict[int, str] | None:
    """Read all tokens by id, added ones included; None without tokenizer.json. Raises UsageError."""
    path = None if directory is None else directory / TOKENIZER
    if path is None or not path.is_file():
        return None
    tokenizer = read_json(path, MAX_TOKENIZER_BYTES)
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            words = {token: word for word, token in vocabulary.items()}
        else:  # Unigram's: pieces with their scores, in order
            words = {token: piece for token, (piece, _) in enumerate(vocabulary)}
        return words | {added["id"]: added["content"] for added in tokenizer.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: has no vocabulary ({error!r})") from error


class IndependentDrafter(Drafter):
    """Client half. There is no server half."""

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one_pass = True

    def __init__(self, model: CausalModel, vocab_size: int, tokens: Tensor | None = None) -> None:
        """`tokens` [rows] int64: what the rows of the model's head stand for; None: token i for row i."""
        self.model = model
        self.tokens = None if tokens is None else tokens.to(model.model.device)
        self.vocab_size = vocab_size

    def new_state(self) -> IndependentState:
        return IndependentState(self)


class IndependentState(WithTokenState):
    """The model's cache over the text, followed by the rows of expanded nodes."""

    def __init__(self, drafter: IndependentDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(NO_FEATURES.width)
        self._cache = CausalCache()
        self._tree_mask = TreeMask(drafter.model.model.device)
        self._num_text_rows = 0  # rows of the cache that are tokens'; draft rows follow

    @property
    def max_levels(self) -> int:
        """Levels left in the model's context, UNLIMITED while its end is far."""
        # Bounded because models with learned positions fail beyond their context.
        limit = self._drafter.model.max_context
        left = UNLIMITED if limit is None else max(0, limit - self.num_tokens + 1)
        return left if left <= FAR else UNLIMITED

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)

    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        if not self.max_levels:
            limit = self._drafter.model.max_context
            raise UsageError(f"{NAME}: the text has {self.num_tokens} tokens, the drafter's context {limit}")
        self._tree_mask.clear()
        first = min(self._num_text_rows, self.num_tokens - 1)  # the root at least: its logits are needed
        self._cache.truncate(first)
        for start in range(first, self.num_tokens, CHUNK):
            stop = min(start + CHUNK, self.num_tokens)
            logits = self._run(self._token_state.tokens[start:stop], range(start, stop), None, last_only=True)
        self._num_text_rows = self.num_tokens
        return logits[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, mask = self._tree_mask.add(parents, self._num_text_rows)
        return self._run(tokens, (depths + (self.num_tokens - 1)).tolist(), mask, last_only=False)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        root = self.root_logits().unsqueeze(0)
        return torch.cat((root, self.expand(tree.tokens, tree.parents))) if tree.tokens else root

    def _run(self, tokens: Sequence[int], positions: Sequence[int], mask: Tensor | None, *, last_only: bool) -> Tensor:
        model = self._drafter.model
        # The target may choose a padding token beyond this model's vocabulary; the model then reads its last token.
        known = [min(token, model.num_rows - 1) for token in tokens]
        logits = model.run(known, positions, self._cache, mask, last_only)
        if self._drafter.tokens is not None:
            return DraftLogits.of(logits, self._drafter.tokens, self._drafter.vocab_size)
        return fit_logits(logits, self._drafter.vocab_size)


def _recognizes(files: DrafterFiles) -> bool:
    """Recognize a whole language model; files that also hold heads went to an earlier family."""
    named = any(str(name).endswith(ARCHITECTURES) for name in files.config.get("architectures") or ())
    return named and any(name.startswith(PREFIXES) for name in files.names)


def _load(files: DrafterFiles, target: TargetWeights) -> Drafter:
    tied = files.options.get(TIE_TO_TARGET) or False

    tokens = target.draft_tokens

    def prepare(model: PreTrainedModel) -> set[str]:
        nonlocal tokens
        if tied:
            return _tie(model, files, target)
        check_vocabulary(files, num_embeddings(model), target)
        tokens = _cut_head(model, target.draft_tokens)
        return set()

    borrowed = target.embed.numel() + target.lm_head.numel() if tied else 0
    model = CausalModel.load(files.directory, target.embed, prepare, spare=borrowed)
    return IndependentDrafter(model, target.sizes.vocab, tokens)


def _cut_head(model: PreTrainedModel, wanted: Tensor | None) -> Tensor | None:
    """Give the model a head of the wanted tokens' rows alone, and return the tokens of these rows."""
    if wanted is None:
        return None
    accessors: Any = model  # transformers' are partly untyped
    own: nn.Linear = accessors.get_output_embeddings()
    weight, tokens = select_rows(own.weight.detach(), None, wanted)
    head = nn.Linear(weight.shape[1], len(weight), bias=own.bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    if own.bias is not None:
        head.bias = nn.Parameter(select_rows(own.bias.detach(), None, wanted)[0], requires_grad=False)
    accessors.set_output_embeddings(head)
    return tokens


def _tie(model: PreTrainedModel, files: DrafterFiles, target: TargetWeights) -> set[str]:
    """Replace the model's embedding and lm_head by the target's. Returns the names of the replaced tensors."""
    files.need_equal("hidden size", model.config.get_text_config().hidden_size, target.sizes.hidden)
    accessors: Any = model  # transformers' are partly untyped
    own = (accessors.get_input_embeddings().weight, accessors.get_output_embeddings().weight)
    # With duplicates: a tied weight has two names, and files may lack either.
    names = {name for name, tensor in model.named_parameters(remove_duplicate=False) if any(tensor is o for o in own)}
    # On meta: initial weights of this size would take seconds, and are replaced at once.
    embedding = nn.Embedding(target.sizes.vocab, target.sizes.hidden, device="meta")
    embedding.weight = nn.Parameter(target.embed, requires_grad=False)
    head = nn.Linear(target.sizes.hidden, len(target.lm_head), bias=False, device="meta")
    head.weight = nn.Parameter(target.lm_head, requires_grad=False)
    accessors.set_input_embeddings(embedding)
    accessors.set_output_embeddings(head)
    return names


FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="goes on",
    trees="dynamic",
    recognizes=_recognizes,
    drafter=_load,
    asked=3,  # any whole model, even one that also holds heads or MTP layers
    options=(TIE_TO_TARGET, DRAFT_VOCAB_OPTION),
)
