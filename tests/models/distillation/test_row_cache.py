"""Rows at different lengths, one batch: each is what the model makes of it alone, for several kinds of attention."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config

from outrider_models.distillation import row_cache
from outrider_models.distillation.row_cache import RowCache
from outrider_proto.errors import UsageError

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4, "max_position_embeddings": 64}  # fmt: skip
CONFIGS = [
    LlamaConfig(**SIZES),
    MistralConfig(**SIZES, sliding_window=5),
    Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=["sliding_attention", "full_attention"] * 2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
@torch.inference_mode()
def test_rows_are_as_they_are_alone(config, monkeypatch):
    monkeypatch.setattr(row_cache, "_TOGETHER", 2)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    texts = [torch.randint(64, (length,)).tolist() for length in (9, 12, 7)]
    whole = [model(torch.tensor([text])).logits[0] for text in texts]
    cache = RowCache(model, batch=4)

    def run(first, tokens, positions):
        mask = cache.prepare(first, torch.tensor(positions), torch.float32)
        ids = {"input_ids": torch.tensor(tokens), "position_ids": torch.tensor(positions)}
        return model(**ids, attention_mask=mask, past_key_values=cache.layers, use_cache=True).logits

    begun = run(0, [text[:6] for text in texts[:2]], [list(range(6))] * 2)
    third = run(2, [texts[2][:5]], [list(range(5))])[0]
    for made, expected in ((begun[0], whole[0]), (begun[1], whole[1]), (third, whole[2])):
        torch.testing.assert_close(made, expected[: len(made)], atol=1e-5, rtol=1e-4)
    for step in range(2):
        at = [6 + step, 6 + step, 5 + step]
        made = run(0, [[text[i]] for text, i in zip(texts, at, strict=True)], [[i] for i in at])
        for row, i in enumerate(at):
            torch.testing.assert_close(made[row, 0], whole[row][i], atol=1e-5, rtol=1e-4)
    cache.move(1, 0, 8)  # the first text has ended, the second takes its row
    made = run(0, [[texts[1][8]]], [[8]])
    torch.testing.assert_close(made[0, 0], whole[1][8], atol=1e-5, rtol=1e-4)


def test_layers_without_attention_are_refused():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    model.config.layer_types = ["linear_attention"] * 4
    with pytest.raises(UsageError, match="layers of linear_attention: need attention layers alone"):
        RowCache(model, batch=1)
