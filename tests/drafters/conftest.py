"""Golden files, tiny random drafters, and the target as a judge of trees."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outrider_drafters import (
    Activations,
    Drafter,
    DraftState,
    Eagle2,
    Eagle2Drafter,
    Eagle2Sizes,
    MoA,
    MoADrafter,
    MoASizes,
    Tap,
    TargetSizes,
    TargetWeights,
    TreeShape,
    grow_tree,
    load_drafter,
    load_tap,
)
from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.contracts.text_drafter import TextDrafter
from outrider_drafters.families.dflash.family import DFlashDrafter
from outrider_drafters.families.dflash.layer_masks import LayerMask
from outrider_drafters.families.dflash.network import DFlash, DFlashSizes
from outrider_drafters.families.dspark.family import DSparkDrafter
from outrider_drafters.families.dspark.network import DSpark, DSparkHeads
from outrider_drafters.families.eagle3.family import Eagle3Drafter
from outrider_drafters.families.eagle3.layer import Eagle3Sizes
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.gemma4.family import AssistantDrafter
from outrider_drafters.families.gemma4.network import Assistant, AssistantSizes, LentShape
from outrider_drafters.families.hydra.family import HydraDrafter
from outrider_drafters.families.hydra.network import Hydra, HydraSizes
from outrider_drafters.families.independent.family import IndependentDrafter
from outrider_drafters.families.independent.network import CausalModel
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.families.medusa.family import MedusaDrafter
from outrider_drafters.families.medusa.network import Medusa, MedusaSizes
from outrider_drafters.families.mlp_speculator.family import MLPSpeculatorDrafter
from outrider_drafters.families.mlp_speculator.network import MLPSpeculator, MLPSpeculatorSizes
from outrider_drafters.families.peagle.family import PEagleDrafter
from outrider_drafters.families.peagle.network import PEagle, PEagleSizes
from outrider_drafters.families.suffix.family import SuffixDrafter
from outrider_proto.tree import ROOT, DraftTree

sys.path.insert(0, str(Path(__file__).parent))  # for modules shared between the tests of this folder

TINY = TargetSizes(16, 3, 4, 2, 4, 23, 10000.0, 1e-5, 128, "llama")


def random(seed: int, *builds: Callable[[], Any]) -> tuple[Any, ...]:  # Any: networks of all families
    """A target's weights, and networks of weights large enough that every input matters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        frozen = TargetWeights(torch.randn(23, 16), torch.randn(23, 16), TINY, (0,))
        networks = [build().requires_grad_(False) for build in builds]
        for parameter in (parameter for network in networks for parameter in network.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)
    return frozen, *networks


def tiny_moas() -> dict[str, Drafter]:
    """Without TLI; and with two layers of it, the second with a window that the tests' texts outgrow."""
    lsa, sa = BlockShape(TINY.packed_kv, 4, 2, TINY.packed_kv // 4, 20), BlockShape(16, 4, 2, 4, 20)
    frozen, moa = random(7, lambda: MoA(MoASizes(sa, replace(sa, kv_heads=4), lsa)))
    made: dict[str, Drafter] = {"moa": MoADrafter(moa, frozen)}
    for name, mixed in {"moa tli": lsa, "moa tli without lsa": None}.items():
        sizes = MoASizes(sa, replace(sa, kv_heads=4), mixed, tli=2)
        last = partial(LastLayers, sa, (None, 5))
        frozen, moa, layers = random(8, partial(MoA, sizes), last)
        made[name] = MoADrafter(moa, frozen, last=layers)
    return made


def tiny_eagles() -> dict[str, Drafter]:
    """EAGLE-3 narrower than its target, with a small vocabulary of its own and what it feeds back normed; and of three
    layers, the second with a window that the tests' texts outgrow. P-EAGLE of two layers, one with a window."""
    frozen, eagle = random(7, lambda: Eagle2(Eagle2Sizes(BlockShape(16, 4, 2, 4, 20))))
    made: dict[str, Drafter] = {"eagle2": Eagle2Drafter(eagle, frozen)}
    frozen, eagle = random(7, lambda: Eagle2(Eagle2Sizes(BlockShape(16, 4, 2, 4, 20), norms=True)))
    made["eagle2 norms"] = Eagle2Drafter(eagle, frozen)
    block = BlockShape(12, 3, 1, 6, 20, qk_norm=True)
    sizes = Eagle3Sizes(block, 23, 17, 16, (1, 2, 3), own_embedding=True, fc_norm=True, norm_output=True)
    frozen, eagle = random(7, lambda: Eagle3(sizes))
    eagle.set_draft_tokens(torch.arange(3, 20))
    made["eagle3"] = Eagle3Drafter(eagle, frozen)
    layers = Eagle3Sizes(BlockShape(16, 4, 2, 4, 20, qk_norm=True), 23, 23, 16, (1, 2), windows=(None, 5, None))
    frozen, eagle = random(7, lambda: Eagle3(layers))
    made["eagle3 layers"] = Eagle3Drafter(eagle, frozen)
    pairs = Eagle3Sizes(
        BlockShape(16, 4, 2, 4, 20), 23, 17, 16, (1, 2), input_norm=True, own_embedding=True, windows=(5, None)
    )
    frozen, network = random(7, lambda: PEagle(PEagleSizes(pairs, mask_token=22, mask_shape=(1, 1, 32), num_drafts=4)))
    network.set_draft_tokens(torch.arange(3, 20))
    return made | {"peagle": PEagleDrafter(network, frozen)}


def tiny_blocks() -> dict[str, Drafter]:
    """DSpark with the Markov head that remembers, and an lm_head of few tokens."""
    shape = BlockShape(16, 4, 2, 4, 20, qk_norm=True)
    sizes = DFlashSizes(shape, (LayerMask(causal=True, window=5), LayerMask()), (1, 2), block=5, mask_token=22)
    frozen, network = random(7, lambda: DFlash(sizes))
    masks = (LayerMask(causal=True, window=5, from_root=True), LayerMask())
    few = DFlashSizes(shape, masks, (1, 2), block=5, mask_token=22, vocab=23, head_rows=17, own_embedding=True)
    target, dspark = random(7, lambda: DSpark(few, DSparkHeads(rank=6, kind="rnn", confidence="hidden and token")))
    return {"dflash": DFlashDrafter(network, frozen), "dspark": DSparkDrafter(dspark, target)}


def tiny_independent() -> Drafter:
    sizes = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return IndependentDrafter(CausalModel(random(7, lambda: LlamaForCausalLM(config))[1]), 23)


def tiny_gemma4(centroids: int) -> Drafter:
    """A window that the tests' texts outgrow; 0 centroids: a plain head."""
    lent = {"sliding_attention": LentShape(2, 4, 1e4, 2), "full_attention": LentShape(1, 8, 1e6, 1)}
    sizes = AssistantSizes(
        16, 12, 4, 20, 1e-6, ("sliding_attention", "full_attention"), lent, 3, 23, 23, centroids, min(centroids, 9)
    )
    frozen, network = random(7, lambda: Assistant(sizes))
    if network.masked_embedding is not None:
        order = torch.randperm(23, generator=torch.Generator().manual_seed(7))
        network.masked_embedding.token_ordering.copy_(order)
    return AssistantDrafter(network, frozen, (1, 2))


def tiny_heads() -> dict[str, Drafter]:
    """Drafters that read the newest feature alone."""
    frozen, medusa, hydra, after_prefix, mlp = random(
        9,
        lambda: Medusa(MedusaSizes(16, 23, heads=3, blocks=2, tied=False)),
        lambda: Hydra(HydraSizes(16, 23, heads=3, blocks=2, tied=False)),
        lambda: Hydra(HydraSizes(16, 23, heads=3, prefix=BlockShape(16, 4, 2, 4, 20))),
        lambda: MLPSpeculator(MLPSpeculatorSizes(16, 12, 23, 23, heads=3, scale_input=True, tied=True)),
    )
    hydras = {"hydra": HydraDrafter(hydra, frozen), "hydra++": HydraDrafter(after_prefix, frozen)}
    return {"medusa": MedusaDrafter(medusa, frozen), "mlp": MLPSpeculatorDrafter(mlp, frozen)} | hydras


class Pairs(TextDrafter):
    """What followed the last token before, as often as it did."""

    def guesses(self, text: Sequence[int]) -> Counter[int]:
        return Counter(after for token, after in pairwise(text) if token == text[-1])


def every_tiny_drafter() -> dict[str, Drafter]:
    others: dict[str, Drafter] = {"lookup": LookupDrafter(23, ngram=2), "suffix": SuffixDrafter(23), "text": Pairs(23)}
    others |= {"independent": tiny_independent(), "gemma4": tiny_gemma4(0), "gemma4 ordered": tiny_gemma4(23)}
    return others | tiny_moas() | tiny_eagles() | tiny_blocks() | tiny_heads()


@pytest.fixture(scope="session")
def tiny_drafters() -> dict[str, Drafter]:
    return every_tiny_drafter()


@contextmanager
def float64() -> Iterator[None]:
    """Make new tensors float64, in which no order of summation makes a difference that matters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def in_float64() -> Callable[[], AbstractContextManager[None]]:
    return float64


@pytest.fixture(scope="session")
def float64_drafters() -> dict[str, Drafter]:
    with float64():
        return every_tiny_drafter()


@pytest.fixture(scope="session")
def target_l4(golden: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(golden / "target_l4").eval()


@pytest.fixture(scope="session")
def target_l8(golden: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(golden / "target_l8").eval()


@pytest.fixture(scope="session")
def target_tiny(golden: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(golden / "target_tiny").eval()


@dataclass
class Golden:
    """One golden case, loaded as a user would."""

    arrays: dict[str, Tensor]
    drafter: Drafter
    tap: Tap
    directory: Path


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, golden: Path) -> Path:
    """Directory of the golden target that the module names."""
    return golden / request.module.TARGET


@pytest.fixture(scope="module")
def frozen(target: Path) -> TargetWeights:
    return TargetWeights.load(target)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, golden: Path) -> Path:
    """Directory of the golden case that the module names."""
    return golden / request.module.CASE


@pytest.fixture
def tensors(case: Path) -> dict[str, Tensor]:
    """What a golden case of heads stores."""
    (stored,) = (case / "drafter").glob("*.pt")
    return torch.load(stored, weights_only=True)


@pytest.fixture(scope="module")
def arrays(case: Path) -> dict[str, Tensor]:
    return load_file(case / "forward.safetensors")


@pytest.fixture
def place(tmp_path: Path, case: Path, target: Path, frozen: TargetWeights) -> Any:
    """A directory to write heads into, in the file that the golden case has."""
    from heads_place import Place

    (stored,) = (case / "drafter").glob("*.pt")
    return Place(tmp_path / "drafter", target, frozen, f"{stored.stem}.safetensors")


@pytest.fixture(scope="session")
def eagle_case(golden: Path) -> Golden:
    return _case(golden, "eagle2_llama", "target_l4", "golden")


@pytest.fixture(scope="session")
def moa_case(golden: Path) -> Golden:
    return _case(golden, "moa_tli0", "target_tiny", "teacher_forced")


def _case(golden: Path, name: str, target: str, arrays: str) -> Golden:
    drafter = load_drafter(golden / name / "drafter", TargetWeights.load(golden / target))
    tap = load_tap(golden / name / "drafter", golden / target)
    return Golden(load_file(golden / name / f"{arrays}.safetensors"), drafter, tap, golden / name)


@torch.inference_mode()
def activations(model: LlamaForCausalLM, tokens: list[int]) -> Activations:
    out = model(input_ids=torch.tensor([tokens]), use_cache=True, output_hidden_states=True)
    layers = out.past_key_values.layers
    return Activations(
        torch.cat([layer.keys for layer in layers]),
        torch.cat([layer.values for layer in layers]),
        {-1: out.hidden_states[-1][0], **{layer: states[0] for layer, states in enumerate(out.hidden_states)}},
    )


@torch.inference_mode()
def greedy_path(model: LlamaForCausalLM, tokens: list[int], tree: DraftTree) -> tuple[list[int], int]:
    """The tokens accepted and the bonus, from one pass over tokens (root last) and tree."""
    first = len(tokens)
    seen = torch.ones(first + len(tree), first + len(tree)).tril().bool()
    seen[first:, first:] = torch.from_numpy(tree.ancestors())
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    positions = list(range(first)) + [first - 1 + depth for depth in tree.depths()]
    ids = torch.tensor([[*tokens, *tree.tokens]])
    out = model(input_ids=ids, position_ids=torch.tensor([positions]), attention_mask=mask[None, None], use_cache=False)
    chosen = out.logits[0, first - 1 :].argmax(-1).tolist()  # after the root, after node 0, ...
    accepted: list[int] = []
    node = ROOT
    while (child := tree.child(node, chosen[node + 1])) is not None:
        accepted.append(tree.tokens[child])
        node = child
    return accepted, chosen[node + 1]


@dataclass
class Generation:
    """Greedy generation by drafting and verifying; `tokens` end with the root, which is a bonus not yet processed."""

    tokens: list[int]
    state: DraftState
    trees: list[DraftTree] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@pytest.fixture(scope="session")
def generate() -> Callable[..., Generation]:
    def run(
        model: LlamaForCausalLM, drafter: Drafter, tap: Tap, prompt: list[int], shape: TreeShape, num_tokens: int
    ) -> Generation:
        _, bonus = greedy_path(model, prompt, DraftTree())
        made = Generation([*prompt, bonus], drafter.new_state())
        made.state.append(made.tokens)
        while len(made.tokens) - len(prompt) < num_tokens:
            feed(model, tap, made)
            tree = grow_tree(made.state, shape)
            accepted, bonus = greedy_path(model, made.tokens, tree)
            made.trees.append(tree)
            made.accepted.append(len(accepted))
            made.tokens += [*accepted, bonus]
            made.state.append([*accepted, bonus])
        feed(model, tap, made)
        return made

    return run


def feed(model: LlamaForCausalLM, tap: Tap, made: Generation) -> None:
    """Give the state the features of all tokens before the root; it ignores those it has."""
    made.state.add_features(0, tap.new_state().rows(activations(model, made.tokens[:-1])))
