"""Targets: a plain transformers Llama trained on the stream."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from outrider_models.core.tokenizer import BOS, EOS, PAD, corpus_texts, save_tokenizer, special_id, train_tokenizer
from outrider_models.training.recipes.data import LabeledBatch
from outrider_models.training.recipes.probe import probe, probe_samples
from outrider_models.training.recipes.recipe import TargetRecipe, TargetShape
from outrider_models.training.recipes.trainer import mean_by_group


class TargetTask:
    """A fresh target and its tokenizer, which is trained first unless the directory holds it already."""

    def __init__(self, recipe: TargetRecipe, directory: Path) -> None:
        self.tokenizer = _tokenizer(recipe, directory)
        torch.manual_seed(recipe.stream.seed)
        self.network = LlamaForCausalLM(target_config(recipe.shape, self.tokenizer))
        _initialize(self.network, recipe.shape.embedding_std)

    def loss(self, batch: LabeledBatch, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Weighted cross-entropy; by group, that of replies alone. Logits are made only where weights are."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.network.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
            kept = batch.weights > 0
            logits = self.network.lm_head(hidden[kept])
        losses = F.cross_entropy(logits.float(), batch.labels[kept], reduction="none")
        weights = batch.weights[kept]
        groups = batch.groups[:, None].expand_as(batch.weights)[kept]
        return (losses * weights).sum() / batch.total_weight, mean_by_group(losses, groups, weights == 1)

    def export(self, directory: Path) -> None:
        """The plain Hugging Face layout: weights in bfloat16, configurations, tokenizer."""
        config = LlamaConfig.from_dict(self.network.config.to_dict())
        half = LlamaForCausalLM(config).bfloat16()
        half.load_state_dict(rescale_features(self.network.state_dict()))
        half.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # unannotated in transformers
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )
        half.save_pretrained(directory)
        save_tokenizer(self.tokenizer, directory, config.max_position_embeddings)

    def probe(self, samples: int) -> Mapping[str, str]:
        scores = probe(self.network, self.tokenizer, probe_samples(samples))
        return {family: f"{score.passed}/{score.total}" for family, score in scores.items()}


def target_config(shape: TargetShape, tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=special_id(tokenizer, BOS),
        eos_token_id=special_id(tokenizer, EOS),
        pad_token_id=special_id(tokenizer, PAD),
    )


def rescale_features(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same function with features of about size two and small embeddings, as large models have them.

    Dividing embeddings and all that layers add by one number, and giving it back in the final norm, changes no logit
    (a power of two: not even by rounding, but for the norms' epsilon). Drafters start from embeddings and aim at
    features, so it does change how well they learn.
    """
    size = weights["model.norm.weight"].float().pow(2).mean().sqrt()
    factor = 2.0 ** round(1 - math.log2(float(size)))
    shrunk = ("embed_tokens.weight", "lm_head.weight", "o_proj.weight", "down_proj.weight")
    scaled = {name: tensor / factor if name.endswith(shrunk) else tensor for name, tensor in weights.items()}
    return scaled | {"model.norm.weight": weights["model.norm.weight"] * factor}


@torch.no_grad()
def _initialize(network: LlamaForCausalLM, embedding_std: float) -> None:
    """Start the residual stream as the tokens' embeddings alone, and the logits small all the same.

    Layers add nothing at first. Tied embeddings of transformers' 0.02 are soon drowned by what the first layer adds;
    copying, which needs to see which token stands where, then hardly forms.
    """
    network.model.embed_tokens.weight.normal_(std=embedding_std)
    network.model.norm.weight.fill_(network.config.initializer_range / embedding_std)
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _tokenizer(recipe: TargetRecipe, directory: Path) -> Tokenizer:
    saved = directory / "tokenizer.json"
    if saved.exists():
        return Tokenizer.from_file(str(saved))
    texts = corpus_texts(recipe.stream.seed, recipe.shape.tokenizer_samples)
    return train_tokenizer(texts, recipe.shape.vocab_size)
