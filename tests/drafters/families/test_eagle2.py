"""EAGLE-2 against the published code's numbers, and its state against its own teacher-forced pass."""

from pathlib import Path

import pytest
from heads_place import SETTINGS, begun, check_published_generation, check_published_tree, close
from safetensors.torch import load_file

from outrider_drafters import Eagle2, Eagle2Sizes, TreeShape, load_drafter
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.families.feature_drafter import FeatureState

TARGET = "target_l4"


@pytest.fixture
def state(eagle_case) -> FeatureState:
    """The prompt and the first token after it, with the prompt's features."""
    arrays = eagle_case.arrays
    tokens = [*arrays["prompt_ids"][0].tolist(), *arrays["next_token"][0].tolist()]
    return begun(eagle_case.drafter, tokens, arrays["target_features"][0])


@pytest.fixture(scope="module")
def eagle(golden: Path) -> Eagle2:
    eagle = Eagle2(Eagle2Sizes(BlockShape(64, 4, 2, 16, 128)))
    tensors = load_file(golden / "eagle2_llama" / "drafter" / "model.safetensors")
    eagle.load_state_dict({name: tensor for name, tensor in tensors.items() if name != "embed_tokens.weight"})
    return eagle.requires_grad_(False)


def test_prefill_agrees(state, eagle_case):
    arrays = eagle_case.arrays
    close(state.root_logits(), arrays["drafter_logits"][0, -1])
    close(state._cache.keys, arrays["drafter_k"])
    close(state._cache.values, arrays["drafter_v"])


def test_teacher_forced_pass_agrees(eagle, eagle_case):
    arrays, drafter = eagle_case.arrays, eagle_case.drafter
    embeds = drafter.embed[arrays["drafter_input_ids"]]
    hidden = eagle.forward_train(embeds, arrays["target_features"])
    close(hidden, arrays["drafter_hidden"])
    close(hidden @ drafter.target.lm_head.T, arrays["drafter_logits"])


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_tree_is_identical(state, eagle_case, number):
    check_published_tree(state, eagle_case.arrays, number)


def test_generation_is_identical(eagle_case, target_l4, generate):
    prompt = eagle_case.arrays["prompt_ids"][0].tolist()
    made = generate(target_l4, eagle_case.drafter, eagle_case.tap, prompt, TreeShape(6, 5, 23), num_tokens=64)
    check_published_generation(made, eagle_case.arrays, eagle_case.directory)


def test_steps_that_are_no_number_are_refused(tmp_path: Path, frozen):
    Eagle2(Eagle2Sizes(BlockShape(64, 4, 2, 16, 40))).export(tmp_path, frozen.sizes, steps=0)
    with pytest.raises(ValueError, match="outrider_steps=0"):
        load_drafter(tmp_path, frozen)
