"""Reference decoding: the target alone, one token a pass, with transformers' own cache and attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.target import Target


@torch.inference_mode()
def plain_greedy(target: Target, ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """Return the new tokens after `ids`, up to and including an end of text. Not while the target serves."""
    answer: list[int] = []
    tokens = torch.tensor([list(ids)], device=target.kv.device)
    cache = None
    with eager_attention(target.model):
        while len(answer) < max_new_tokens:
            out = target.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            answer.append(int(out.logits[0, -1].argmax()))
            if answer[-1] in target.eos_token_ids:
                break
            tokens = torch.tensor([answer[-1:]], device=target.kv.device)
    return answer
