"""Target training: a plain transformers Llama on the training stream."""

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
    """A target with random weights, and its tokenizer, trained first unless the directory has it already."""

    def __init__(self, recipe: TargetRecipe, directory: Path) -> None:
        self.tokenizer = _tokenizer(recipe, directory)
        torch.manual_seed(recipe.stream.seed)
        self.network = LlamaForCausalLM(target_config(recipe.shape, self.tokenizer))
        _initialize(self.network, recipe.shape.embedding_std)

    def loss(self, batch: LabeledBatch, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the weighted cross-entropy, and that of replies by group."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.network.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
            # Logits [rows, V] are the largest tensor of the step: they are made only where there is a weight.
            kept = batch.weights > 0
            logits = self.network.lm_head(hidden[kept])
        losses = F.cross_entropy(logits.float(), batch.labels[kept], reduction="none")
        weights = batch.weights[kept]
        groups = batch.groups[:, None].expand_as(batch.weights)[kept]
        return (losses * weights).sum() / batch.total_weight, mean_by_group(losses, groups, weights == 1)

    def export(self, directory: Path) -> None:
        """Write the plain Hugging Face layout: weights in bfloat16, configuration, tokenizer."""
        # A second model: bfloat16() on the one in training would round its weights.
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
    """Rescale a Llama so that its features have an rms of about 2 and its embeddings are small, as in large models.

    Embeddings and everything that layers add are divided by one number, and the final norm is multiplied by it, so no
    logit changes. Drafters start from embeddings and aim at features, so they learn better.
    """
    size = weights["model.norm.weight"].float().pow(2).mean().sqrt()
    # A power of two: exact in floating point, up to the norms' epsilon.
    factor = 2.0 ** round(1 - math.log2(float(size)))
    shrunk = ("embed_tokens.weight", "lm_head.weight", "o_proj.weight", "down_proj.weight")
    scaled = {name: tensor / factor if name.endswith(shrunk) else tensor for name, tensor in weights.items()}
    return scaled | {"model.norm.weight": weights["model.norm.weight"] * factor}


@torch.no_grad()
def _initialize(network: LlamaForCausalLM, embedding_std: float) -> None:
    """Initialize so that the residual stream is the tokens' embeddings and the logits are small.

    Layers add nothing at first. With the tied embeddings of transformers, of 0.02, the output of the first layer soon
    drowns them, and the model hardly learns to copy, which needs the identity of each token.
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
