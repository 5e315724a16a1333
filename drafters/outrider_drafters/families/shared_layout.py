"""What published files of several families say in one way: maps of a draft vocabulary, a head, how much to draft."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_drafters.checkpoints.draft_vocabulary import check_membership, draft_tokens
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DDTREE_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreeShape
from outrider_drafters.readers.config import config_int

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"
D2T, T2D = "d2t", "t2d"
# Parts of the target that trainers keep for their losses and export along.
VERIFIERS = ("verifier_norm.weight", "verifier_lm_head.weight", "verifier_embed_tokens.weight")
STEPS = "outrider_steps"  # key of our config.json: number of steps of its own output that a head was trained over


def stored_head(files: DrafterFiles, target: TargetSizes) -> tuple[int, bool]:
    """Return the size of the draft vocabulary, and true if lm_head is the file's own."""
    # tie_word_embeddings is no guide: exporters copy it from the target.
    if LM_HEAD in files.names:
        rows = files.checkpoint.matrix(LM_HEAD)[0]
        if rows != target.vocab and D2T not in files.names:
            raise files.fault(f"lacks tensors {D2T}: {LM_HEAD} has {rows} rows, the target's vocabulary {target.vocab}")
        return rows, True
    if config_int(files.config, "draft_vocab_size", target.vocab) != target.vocab:
        raise files.fault(f"lacks tensors {LM_HEAD}")
    return target.vocab, False


def check_vocabulary(files: DrafterFiles, draft_vocab: int, vocab: int) -> None:
    """Raise UsageError if d2t or t2d contradict themselves or each other."""
    if D2T not in files.names:
        return
    with files.naming_errors():
        d2t = files.checkpoint.read(D2T)
        if draft_vocab == vocab and not bool(d2t.any()):
            # Without a draft vocabulary both maps may keep their initial values, which say nothing.
            return
        tokens = draft_tokens(d2t, vocab)
        if T2D in files.names:
            check_membership(files.checkpoint.read(T2D), tokens, vocab)


def mask_token(files: DrafterFiles, target: TargetSizes, keys: Sequence[str] = ("mask_token_id",)) -> int:
    """Read the token that stands in mask rows, from the first of the keys that a flat config has. Raises UsageError."""
    key = next((key for key in keys if files.config.get(key) is not None), keys[0])
    token = files.config.get(key)
    if type(token) is not int or not 0 <= token < target.vocab:
        raise files.fault(f"{key}={token}: need a row of the target's embedding, 0 to {target.vocab - 1}")
    return token


def check_layers(files: DrafterFiles, stored: int) -> None:
    """Raise UsageError if config.json says another number of layers than are stored."""
    if (said := config_int(files.config, "num_hidden_layers", stored)) != stored:
        raise files.fault(f"holds {stored} layers: config.json says num_hidden_layers={said}")


def best_first_or_chain(files: DrafterFiles, levels: int, default: int = 0) -> TreeShape:
    """Return the best-first tree of as many nodes as the options say, else `default`; of 0 nodes, a chain of levels."""
    levels, chosen = min(levels, MAX_LEVELS), files.options.get(DDTREE_OPTION)
    budget = default if chosen is None else chosen
    return TreeShape.best_first(levels, budget) if budget else TreeShape.chain(levels)


def speculative_tokens(files: DrafterFiles) -> int | None:
    """Return how many tokens speculators' config proposes to draft, if it says so."""
    proposals = files.config.get("speculators_config")
    methods = proposals.get("proposal_methods") if isinstance(proposals, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return config_int(first, "speculative_tokens") if isinstance(first, Mapping) else None


def proposing(algorithm: str, tokens: int) -> dict[str, Any]:  # Any: raw JSON
    """Return the part of speculators' config that says how many tokens to draft."""
    proposal = {"proposal_type": "greedy", "speculative_tokens": tokens}
    return {"algorithm": algorithm, "default_proposal_method": "greedy", "proposal_methods": [proposal]}
