"""Compare an independent drafter's tokens with the target's, and fit its logits to the target's vocabulary.

Models of one family share a tokenizer and pad its vocabulary to different sizes (Qwen2.5: 151936 and 152064 rows for
151665 tokens). Padding may differ, tokens may not: a drafter with another tokenizer drafts nonsense without any error.
"""

import math
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

TOKENIZER = "tokenizer.json"


def check_vocabulary(files: DrafterFiles, rows: int, target: TargetWeights) -> None:
    """Raise UsageError unless a drafter with `rows` embeddings has the target's tokens, but for padding."""
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
    tokenizer = read_json(path)
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            words = {token: word for word, token in vocabulary.items()}
        else:  # Unigram's: pieces with their scores, in order
            words = {token: piece for token, (piece, _) in enumerate(vocabulary)}
        return words | {added["id"]: added["content"] for added in tokenizer.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: has no vocabulary ({error!r})") from error
