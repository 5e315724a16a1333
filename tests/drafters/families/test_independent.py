"""An independent drafter against transformers' own model: logits, trees, exact output, vocabularies, refusals."""

import json
import math
from pathlib import Path

import pytest
import torch
from heads_place import begun
from heads_place import near as close
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.families.independent.family import CHUNK
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT

VOCABULARY = 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 600,
}
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama, other head sizes, scaled RoPE": LlamaConfig(
        **SIZES | {"num_key_value_heads": 4},
        head_dim=10,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e4,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral, sliding window": MistralConfig(**SIZES, head_dim=6, sliding_window=5),
    "gemma2, soft caps": Gemma2Config(
        **SIZES, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
    ),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=600),
}


def made(config: PretrainedConfig, path: Path) -> Path:
    """A model with weights large enough that every input matters, saved."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if "norm" not in name and "ln_" not in name:
                torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(path)
    return path


def plain_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    """After every token, from transformers' own attention in one pass."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def frozen_of(path: Path, vocab: int = VOCABULARY) -> TargetWeights:
    """A target of which an independent drafter asks the vocabulary alone."""
    target = LlamaConfig(**SIZES | {"vocab_size": vocab})
    return TargetWeights.load(made(target, path / f"target_{vocab}"))


@pytest.fixture
def llama(tmp_path) -> Path:
    return made(ARCHITECTURES["llama"], tmp_path / "drafter")


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_drafting_gives_the_models_own_logits(name, tmp_path):
    path = made(ARCHITECTURES[name], tmp_path / "drafter")
    drafter = load_drafter(path, frozen_of(tmp_path))
    state = drafter.new_state()
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    state.append(text)
    root = state.root_logits()
    children = state.expand([7, 8], [ROOT, ROOT])
    grandchildren = state.expand([2, 0, 1], [1, 0, 1])
    close(root, plain_logits(path, text)[-1])
    close(children[0], plain_logits(path, [*text, 7])[-1])
    close(children[1], plain_logits(path, [*text, 8])[-1])
    close(grandchildren[0], plain_logits(path, [*text, 8, 2])[-1])
    close(grandchildren[1], plain_logits(path, [*text, 7, 0])[-1])
    state.append([8, 1])
    close(state.root_logits(), plain_logits(path, [*text, 8, 1])[-1])
    state.rollback(6)
    state.append([30])
    close(state.root_logits(), plain_logits(path, [*text[:6], 30])[-1])


def test_a_long_prompt_goes_in_by_chunks(llama, tmp_path):
    text = torch.randint(VOCABULARY, (CHUNK + 20,), generator=torch.Generator().manual_seed(1)).tolist()
    state = begun(load_drafter(llama, frozen_of(tmp_path)), text)
    close(state.root_logits(), plain_logits(llama, text)[-1])


def test_the_server_has_nothing_to_do(golden):
    assert load_tap(golden / "target_vicuna_tiny", golden / "target_tiny") is None


def test_tied_to_the_target(llama, tmp_path):
    """The target's embedding and lm_head in place of its own, which the file may lack."""
    frozen = frozen_of(tmp_path, vocab=50)
    tied = made(LlamaConfig(**SIZES | {"vocab_size": 50}), tmp_path / "tied")
    tensors = load_file(tied / "model.safetensors")
    tensors |= {name: tensor for name, tensor in load_file(llama / "model.safetensors").items() if "layers" in name}
    tensors |= {"model.embed_tokens.weight": frozen.embed, "lm_head.weight": frozen.lm_head}
    save_file(tensors, tied / "model.safetensors", metadata={"format": "pt"})
    without = load_file(llama / "model.safetensors")
    del without["model.embed_tokens.weight"]
    save_file(without, llama / "model.safetensors", metadata={"format": "pt"})

    state = begun(load_drafter(f"{llama},tie_to_target=true", frozen), [49, 3, 45])
    close(state.root_logits(), plain_logits(tied, [49, 3, 45])[-1])
    with pytest.raises(UsageError, match=r"lacks tensors model\.embed_tokens\.weight"):
        load_drafter(llama, frozen_of(tmp_path))


def write_tokenizer(path: Path, words: list[str], added: dict[int, str] | None = None, unigram: bool = False) -> None:
    vocabulary = [[word, -1.0] for word in words] if unigram else {word: i for i, word in enumerate(words)}
    extra = [{"id": token, "content": word} for token, word in (added or {}).items()]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": extra}))


def words(count: int) -> list[str]:
    return [f"w{i}" for i in range(count)]


@pytest.mark.parametrize("unigram", [False, True])
def test_padding_may_differ(llama, tmp_path, unigram):
    """Rows beyond the tokenizer's tokens: cut off in one direction, impossible in the other."""
    for vocab in (36, 48):
        frozen = frozen_of(tmp_path, vocab)
        write_tokenizer(llama, words(30), {30: "<end>"}, unigram)
        write_tokenizer(frozen.directory, words(30), {30: "<end>"}, unigram)
        state = begun(load_drafter(llama, frozen), [1, 2, 3])
        logits, own = state.root_logits(), plain_logits(llama, [1, 2, 3])[-1]
        assert logits.shape == (vocab,)
        close(logits[:36], own[:36])
        assert (logits[VOCABULARY:] == -math.inf).all()
        state.append([vocab - 1])  # the target may choose padding
        assert state.root_logits().isfinite().any()
        assert max(grow_tree(state, TreeShape(8, 3, 20)).tokens) < min(vocab, VOCABULARY)


def test_other_vocabularies_are_refused(llama, tmp_path):
    larger, same = frozen_of(tmp_path, 48), frozen_of(tmp_path)
    with pytest.raises(UsageError, match=r"vocabulary of 40, the target's has 48: whether that is padding, only tok"):
        load_drafter(llama, larger)
    write_tokenizer(llama, words(40))
    with pytest.raises(UsageError, match="whether that is padding"):
        load_drafter(llama, larger)
    write_tokenizer(larger.directory, words(42))
    with pytest.raises(UsageError, match="vocabulary of 40: the target's tokenizer has token 41, too"):
        load_drafter(llama, larger)
    write_tokenizer(same.directory, [*words(7), "x"])
    with pytest.raises(UsageError, match="token 7 is 'w7', the target's is 'x': another tokenizer"):
        load_drafter(llama, same)
    (same.directory / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json: has no vocabulary"):
        load_drafter(llama, same)


def test_its_own_context_limits_its_reach(tmp_path):
    path = made(GPT2Config(vocab_size=VOCABULARY, n_embd=24, n_layer=1, n_head=2, n_positions=12), tmp_path / "short")
    state = load_drafter(path, frozen_of(tmp_path)).new_state()
    assert state.max_levels == 13
    state.append(list(range(10)))
    tree = grow_tree(state, TreeShape(2, 8, 20))
    assert max(tree.depths()) == state.max_levels == 3
    state.append([1, 2])
    assert state.max_levels == 1
    state.root_logits()
    state.append([3])
    assert state.max_levels == 0
    with pytest.raises(UsageError, match="the text has 13 tokens, the drafter's context 12"):
        state.root_logits()


def test_missing_unknown_and_misshapen_tensors_are_named(llama, tmp_path):
    frozen, file = frozen_of(tmp_path), llama / "model.safetensors"
    whole = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({other: t for other, t in whole.items() if other != name}, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=f"lacks tensors {name}"):
        load_drafter(llama, frozen)
    save_file(whole | {"model.layers.7.x": torch.zeros(1)}, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"holds unknown tensors model\.layers\.7\.x"):
        load_drafter(llama, frozen)
    save_file(whole | {name: torch.zeros(3, 3)}, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"drafter: transformers cannot load it"):
        load_drafter(llama, frozen)


def test_code_of_the_directory_is_not_run_and_not_asked_about(llama, tmp_path, monkeypatch):
    config = json.loads((llama / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (llama / "config.json").write_text(json.dumps(config))
    (llama / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    with pytest.raises(UsageError, match="model_type=own: no architecture that transformers knows"):
        load_drafter(llama, frozen_of(tmp_path))
    assert not (tmp_path / "run").exists()
