"""Whose logits drafters learn from: the target's own, or none."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider_models.training.core.teacher import Teacher
from outrider_proto.errors import UsageError

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 200, "max_position_embeddings": 128}  # fmt: skip


def teacher(directory, kind: str, **settings) -> Teacher:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **settings)).float()
    for weights in model.parameters():
        if weights.ndim == 2:
            weights.data.mul_(8)  # random weights are so small that all distributions are alike
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        model.get_output_embeddings().bias.data.normal_()
    model.save_pretrained(directory)
    return Teacher.load(directory, torch.float32)


@pytest.mark.parametrize(
    ("kind", "settings"), [("llama", {}), ("gemma2", {"final_logit_softcapping": 30.0, "head_dim": 16})]
)
def test_a_target_whose_logits_are_those_of_its_lm_head_teaches(tmp_path, kind, settings):
    assert teacher(tmp_path, kind, **settings).facts.sizes.vocab == 200


@pytest.mark.parametrize(
    ("kind", "settings"), [("granite", {"logits_scaling": 8.0}), ("cohere", {"logit_scale": 0.0625}), ("phi", {})]
)
def test_one_whose_logits_are_scaled_or_biased_does_not(tmp_path, kind, settings):
    with pytest.raises(UsageError, match="its logits are not those of its lm_head"):
        teacher(tmp_path, kind, **settings)
