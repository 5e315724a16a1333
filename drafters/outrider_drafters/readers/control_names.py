"""Tokenizers that know control tokens by secret names, so that text which spells one, such as <|im_end|>, is text."""

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

_PRIVATE_PLANE, _NUM_PRIVATE = 0xF0000, 0xFFFE  # code points that no text has


def private_character() -> str:
    return chr(_PRIVATE_PLANE + secrets.randbelow(_NUM_PRIVATE))


def secret_names(texts: Iterable[str]) -> dict[str, str]:
    """Return a name for each text that nobody can guess."""
    secret = "".join(private_character() for _ in range(4))
    return {text: f"{secret}{number}{secret[0]}" for number, text in enumerate(texts)}


def renamed(tokenizer: Mapping[str, Any], names: Mapping[str, str]) -> str:  # Any: whatever JSON holds
    """Return what a tokenizer.json holds, with other names for tokens; their ids stay."""
    added = [
        token | {"content": names[token["content"]], "normalized": False} if token["content"] in names else token
        for token in tokenizer["added_tokens"]
    ]
    # Vocabularies hold them as well, and might make one of its letters.
    model = dict(tokenizer["model"])
    vocab = model["vocab"]
    model["vocab"] = (
        {names.get(piece, piece): token for piece, token in vocab.items()}
        if isinstance(vocab, dict)
        else [[names.get(piece, piece), score] for piece, score in vocab]
    )
    if "merges" in model:
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return json.dumps({**tokenizer, "added_tokens": added, "model": model})
