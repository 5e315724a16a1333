"""DFlash and DSpark of DeepSpec and speculators, every variant, against formulas written out slowly."""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from block_formulas import (
    BLOCK,
    HEADS,
    KV_HEADS,
    LAYERS,
    MASK,
    TARGET,
    THETA,
    VOCABULARY,
    WIDTH,
    Sees,
    block_rows,
    block_tensors,
    random_tensors,
)
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, TreeShape, grow_tree, load_drafter, write_draft_vocab
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.families.dflash.family import FAMILY as DFLASH
from outrider_drafters.families.dspark.family import FAMILY as DSPARK
from outrider_drafters.load import recognize_family
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT

RANK, WINDOW = 3, 4
DRAFTED = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19, 22])
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "layer_types": ["full_attention"] * LAYERS,
    "sliding_window": None,
    "use_sliding_window": False,
}
DEEPSPEC = QWEN3 | {
    "architectures": ["Qwen3DSparkModel"],
    "num_target_layers": 6,
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "target_layer_ids": [-1, 3, 5],
    "num_anchors": 512,
    "enable_confidence_head": False,
    "markov_rank": 0,
}
SPECULATORS = {
    "architectures": ["DFlashDraftModel"],  # a class of the training code, also for a dspark
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "transformer_layer_config": QWEN3,
    "draft_vocab_size": VOCABULARY,
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "aux_hidden_state_layer_ids": [0, 4, 6],
    "target_hidden_size": None,
    "sample_from_anchor": False,
    "sliding_window_non_causal": False,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW, "use_sliding_window": True}


def sees(query: int, key: int, layer: int, root: int, causal: bool) -> bool:
    """speculators' rule: every row of a sliding layer sees exactly the window's positions before the root."""
    if layer != 0:
        return True
    return root - WINDOW <= key < root or (key >= root and (key <= query or not causal))


@dataclass
class Form:
    """A way in which a drafter is published, and what must come of it."""

    config: dict[str, Any]
    nested: dict[str, Any] = field(default_factory=dict)
    first: int = 0  # row of the block that drafts first
    few: bool = False  # a draft vocabulary of its own
    kind: str = ""  # of the Markov head
    confidence: str = ""
    sliding: str = ""

    def config_json(self) -> dict[str, Any]:
        config = self.config | ({"draft_vocab_size": len(DRAFTED)} if self.few else {})
        if "transformer_layer_config" in config:
            return config | {"transformer_layer_config": QWEN3 | self.nested}
        return config | self.nested

    def tensors(self) -> dict[str, Tensor]:
        rows = len(DRAFTED) if self.few else VOCABULARY
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (VOCABULARY, WIDTH),
            "lm_head.weight": (rows, WIDTH),
        }
        if self.kind:
            shapes |= {"markov_head.markov_w1.weight": (VOCABULARY, RANK), "markov_head.markov_w2.weight": (rows, RANK)}
        layers = {"gated": ("gate_proj", RANK, WIDTH + RANK), "rnn": ("joint_proj", 3 * RANK, 2 * RANK + WIDTH)}
        if self.kind in layers:
            name, out, inputs = layers[self.kind]
            shapes |= {f"markov_head.{name}.weight": (out, inputs), f"markov_head.{name}.bias": (out,)}
        if self.confidence:
            inputs = WIDTH + (RANK if self.confidence == "with markov" else 0)
            shapes |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
        made = block_tensors() | random_tensors(shapes, seed=3)
        for name in made.keys() & {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}:
            made[name] = made[name] * 5  # enough for the token before to change what is drafted
        if self.few:
            t2d = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, DRAFTED, value=True)
            made |= {"d2t": DRAFTED - torch.arange(len(DRAFTED)), "t2d": t2d}
        return made

    def sees(self, root: int) -> Sees:
        return partial(sees, root=root, causal=self.sliding == "causal") if self.sliding else lambda *_: True


def dspark(config: dict[str, Any], kind: str, confidence: str = "") -> dict[str, Any]:
    heads = {"markov_rank": RANK, "markov_head_type": kind, "enable_confidence_head": bool(confidence)}
    heads |= {"confidence_head_with_markov": confidence == "with markov"} if confidence else {}
    return config | heads | ({"speculators_model_type": "dspark"} if "speculators_model_type" in config else {})


FROM_ROOT = {"sample_from_anchor": True}
FORMS = {
    "dflash, DeepSpec": Form(DEEPSPEC),
    "dflash, speculators": Form(SPECULATORS, first=1),
    "dflash, speculators, defaults": Form(
        {key: value for key, value in SPECULATORS.items() if not key.startswith(("sample_from", "sliding"))}, first=1
    ),
    "dflash, speculators, from the root, few tokens": Form(SPECULATORS | FROM_ROOT, few=True),
    "dflash, speculators, sliding": Form(SPECULATORS, nested=SLIDING, first=1, sliding="causal"),
    "dflash, speculators, sliding, not causal": Form(
        SPECULATORS | {"sliding_window_non_causal": True}, nested=SLIDING, first=1, sliding="not causal"
    ),
    "dflash, speculators, sliding without a window": Form(
        SPECULATORS, nested=SLIDING | {"sliding_window": None, "use_sliding_window": False}, first=1
    ),
    "dflash, speculators, rope by kind of layer": Form(
        SPECULATORS,
        nested={
            "rope_parameters": {
                "sliding_attention": {"rope_theta": THETA, "rope_type": "default"},
                "full_attention": {"rope_theta": 5e5, "rope_type": "default"},
            }
        },
        first=1,
    ),
}
for kind in ("vanilla", "gated", "rnn"):
    FORMS |= {
        f"{kind}, DeepSpec": Form(dspark(DEEPSPEC, kind, "with markov"), kind=kind, confidence="with markov"),
        f"{kind}, speculators": Form(
            dspark(SPECULATORS, kind, "hidden") | FROM_ROOT, kind=kind, confidence="hidden", few=True
        ),
        f"{kind}, speculators, not from the root": Form(dspark(SPECULATORS, kind), kind=kind, first=1),
    }
FORMS["vanilla, speculators, sliding"] = Form(
    dspark(SPECULATORS, "vanilla") | FROM_ROOT, nested=SLIDING, kind="vanilla", sliding="causal"
)
FORMS["confidence alone"] = Form(
    SPECULATORS
    | {"speculators_model_type": "dspark", "markov_rank": 0, "confidence_head_with_markov": False}
    | FROM_ROOT,
    confidence="hidden",
)
CONFIDENT = [name for name, form in FORMS.items() if form.confidence]


class Place:
    """A directory of one form."""

    def __init__(self, path: Path, form: Form) -> None:
        path.mkdir()
        self.path, self.form, self.config, self.tensors = path, form, form.config_json(), form.tensors()

    def files(self, options: str = "") -> DrafterFiles:
        save_file(self.tensors, self.path / "model.safetensors")
        (self.path / "config.json").write_text(json.dumps(self.config))
        return DrafterFiles.open(DrafterSource.parse(f"{self.path}{options}"))

    def load(self, frozen: TargetWeights, options: str = ""):
        self.files()
        return load_drafter(f"{self.path}{options}", frozen)

    def refused(self, message: str, frozen: TargetWeights) -> None:
        files = self.files()
        family = recognize_family(files)
        with pytest.raises(UsageError, match=message):
            family.drafter(files, frozen)
        with pytest.raises(UsageError, match=message):
            family.tap(files, TARGET, torch.empty(0))


@pytest.fixture(scope="module")
def frozen() -> TargetWeights:
    generator = torch.Generator().manual_seed(2)
    embed, head = torch.randn(2, VOCABULARY, WIDTH, generator=generator)
    return TargetWeights(embed, head, TARGET, (0,))


@pytest.fixture
def place(tmp_path, request) -> Place:
    return Place(tmp_path / "drafter", FORMS[getattr(request, "param", "vanilla, DeepSpec")])


def hidden_states(count: int) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {tap: torch.randn(count, WIDTH, generator=generator) for tap in (0, 4, BEFORE_NORM)}


def fed(place: Place, frozen: TargetWeights, lacking: int = 0, options: str = ""):
    """A state with the text and its features, and the block's rows by the formulas."""
    drafter, count = place.load(frozen, options), len(TOKENS) - 1 - lacking
    hidden = hidden_states(count)
    tap = recognize_family(place.files()).tap(place.files(), TARGET, torch.empty(0))
    assert tap is not None
    assert tap.info == drafter.tap
    assert tap.hidden_layers == tuple(hidden)
    state = drafter.new_state()
    state.append(TOKENS)
    state.add_features(0, tap.rows(Activations(torch.empty(0), torch.empty(0), hidden)))
    root = TOKENS[-1], len(TOKENS) - 1
    embed = place.tensors["embed_tokens.weight"]
    return state, block_rows(place.tensors, embed, list(hidden.values()), root, place.form.sees(root[1]))


def expected_path(place: Place, rows: Tensor, path: list[int]) -> tuple[Tensor, Tensor]:
    """Logits [Vd] and confidence after each of root and path, one slot at a time."""
    w, form, logits, confidences = place.tensors, place.form, [], []
    state = torch.zeros(RANK)
    before_slots = [TOKENS[-1]] * form.first + [TOKENS[-1], *path]
    for slot, token in enumerate(before_slots):
        h, added, e = rows[slot], torch.zeros(len(w["lm_head.weight"])), torch.empty(0)
        if form.kind:
            e = w["markov_head.markov_w1.weight"][token]
            z = e
            if form.kind == "gated":
                gate = w["markov_head.gate_proj.weight"] @ torch.cat((h, e)) + w["markov_head.gate_proj.bias"]
                z = gate.sigmoid() * e
            if form.kind == "rnn":
                joint = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, h)) + w["markov_head.joint_proj.bias"]
                gate, candidate, output = (
                    joint[:RANK].sigmoid(),
                    joint[RANK : 2 * RANK].tanh(),
                    joint[2 * RANK :].tanh(),
                )
                state, z = gate * state + (1 - gate) * candidate, output
            added = w["markov_head.markov_w2.weight"] @ z
        logits.append(w["lm_head.weight"] @ h + added)
        if form.confidence:
            inputs = torch.cat((h, e)) if form.confidence == "with markov" else h
            confidences.append((w["confidence_head.proj.weight"] @ inputs + w["confidence_head.proj.bias"]).sigmoid())
    return torch.stack(logits)[form.first :], torch.stack(confidences)[form.first :] if confidences else torch.empty(0)


@pytest.mark.parametrize("place", list(FORMS), indirect=True)
@pytest.mark.parametrize("lacking", [0, 3])
def test_agrees_with_the_formulas(place, lacking, frozen):
    """Along two paths of one tree, which share no node."""
    state, rows = fed(place, frozen, lacking)
    paths = [[7, 2, 19, 3], [5, 5, 11, 2]]
    depth = BLOCK - place.form.first
    assert state.max_levels == depth
    root = state.root_logits()
    parents = [[ROOT, ROOT], *([2 * level - 2, 2 * level - 1] for level in range(1, depth - 1))]
    levels = [state.expand([path[level] for path in paths], each) for level, each in enumerate(parents)]
    kept = DRAFTED if place.form.few else torch.arange(VOCABULARY)
    for number, path in enumerate(paths):
        logits, _ = expected_path(place, rows, path[: depth - 1])
        ours = torch.stack([torch.as_tensor(root), *(level[number] for level in levels)])
        torch.testing.assert_close(ours[:, kept], logits, atol=1e-4, rtol=1e-4)
        assert int(ours.isfinite().sum()) == ours[:, kept].numel()


@pytest.mark.parametrize("place", list(FORMS), indirect=True)
def test_the_family_follows_from_the_heads(place):
    family = recognize_family(place.files())
    assert family is (DSPARK if place.form.kind or place.form.confidence else DFLASH)


@pytest.mark.parametrize("place", CONFIDENT, indirect=True)
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_a_chain_ends_where_the_confidence_is_less(place, threshold, frozen):
    """Slot by slot, not by the product; the whole block without a threshold."""
    state, rows = fed(place, frozen)
    whole = grow_tree(state, place.load(frozen).plan)
    assert len(whole) == BLOCK
    _, confidences = expected_path(place, rows, list(whole.tokens[:-1]))
    less = (confidences < threshold).flatten().tolist()
    stopping, _ = fed(place, frozen, options=f",confidence={threshold}")
    cut = grow_tree(stopping, place.load(frozen).plan)
    assert cut.tokens == whole.tokens[: less.index(True) if True in less else BLOCK]


def test_a_tree_ends_node_by_node(place, frozen):
    """What the drafter holds likely, in tree_logits, is not cut."""
    state, rows = fed(place, frozen, options=",confidence=0.5,ddtree=24")
    tree = grow_tree(state, TreeShape.best_first(BLOCK, 24))
    whole = fed(place, frozen)[0].tree_logits(tree)
    torch.testing.assert_close(state.tree_logits(tree), whole)
    assert whole.isfinite().all()
    for node in {*tree.parents} - {ROOT}:
        path, up = [], node
        while up != ROOT:
            path.insert(0, tree.tokens[up])
            up = tree.parents[up]
        assert float(expected_path(place, rows, path)[1][-1]) >= 0.5


@pytest.mark.parametrize("place", ["dflash, DeepSpec", "vanilla, DeepSpec", "rnn, speculators"], indirect=True)
def test_ddtree_is_the_likeliest_paths_of_all(place, frozen):
    budget = 12
    drafter = place.load(frozen, f",ddtree={budget}")
    assert drafter.plan == TreeShape.best_first(BLOCK, budget)
    state, rows = fed(place, frozen, options=f",ddtree={budget}")
    kept = DRAFTED.tolist() if place.form.few else list(range(VOCABULARY))
    scored: list[tuple[float, tuple[int, ...]]] = []
    frontier = [(0.0, ())]
    for _ in range(BLOCK):
        grown = [
            (score + gain, (*path, token))
            for score, path in frontier
            for gain, token in zip(
                expected_path(place, rows, [*path])[0][-1].log_softmax(-1).tolist(), kept, strict=True
            )
        ]
        # Of each level the best `budget` are enough: a child is at most as likely as its parent.
        frontier = sorted(grown, reverse=True)[:budget]
        scored += frontier
    tree, paths = grow_tree(state, drafter.plan), []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((token,) if parent == ROOT else (*paths[parent], token))
    assert set(paths) == {path for _, path in sorted(scored, reverse=True)[:budget]}
    assert place.load(frozen, ",ddtree=0").plan == TreeShape.chain(BLOCK)


@pytest.mark.parametrize("place", ["dflash, DeepSpec", "gated, DeepSpec", "rnn, speculators"], indirect=True)
def test_a_draft_vocabulary_cuts_head_and_markov_head_alike(place, frozen):
    write_draft_vocab(place.path, [7, 2, 19, 4])
    blocks = []
    for options in ("", ",draft_vocab=all"):
        state, _ = fed(place, frozen, options=options)
        blocks.append(torch.stack([torch.as_tensor(state.root_logits()), state.expand([7], [ROOT])[0]]))
    few, every = blocks
    own = [2, 7, 19] if place.form.few else [2, 4, 7, 19]
    assert few.isfinite().any(0).nonzero()[:, 0].tolist() == own
    torch.testing.assert_close(few[:, own], every[:, own])


@pytest.mark.parametrize("place", ["vanilla, speculators"], indirect=True)
def test_speculators_say_how_much_to_draft(place, frozen):
    place.config["speculators_config"] = {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
    }
    assert place.load(frozen).plan == TreeShape.chain(3)


@pytest.mark.parametrize("place", ["vanilla, speculators"], indirect=True)
def test_an_embedding_that_is_left_out_is_the_targets(place, frozen):
    with_own = fed(place, frozen)[0].root_logits()
    place.tensors["embed_tokens.weight"] = frozen.embed.clone()
    as_target = fed(place, frozen)[0].root_logits()
    assert not torch.equal(as_target, with_own)
    place.tensors["verifier_norm.weight"] = torch.ones(WIDTH)  # exported along, and not read
    drafter = place.load(frozen)
    del place.tensors["embed_tokens.weight"]
    assert torch.equal(place.load(frozen).embed, drafter.embed)


DEEPSPEC_FAULTS = {
    "target_layer_ids": ([1, 3, 6], "taps hidden state 7, the target has 0 to 6"),
    "block_size": (None, "block_size=None: need a whole number"),
    "mask_token_id": (None, "mask_token_id=None: need a row"),
    "markov_rank": (4, r"markov_rank=4: markov_head\.markov_w1\.weight has 3 columns"),
    "markov_head_type": ("sum", "markov_head_type=sum: need one of vanilla, gated, rnn"),
    "confidence_head_with_markov": (False, r"proj\.weight has 19 columns: need 16, confidence_head_with_markov=False"),
    "layer_types": (["sliding_attention", "full_attention"], "layer 0 is sliding_attention, of which DeepSpec's code"),
    "is_causal": (True, "is_causal=True: DeepSpec's blocks are not causal"),
    "num_hidden_layers": (5, "holds 2 layers: config.json says num_hidden_layers=5"),
    "hidden_act": ("gelu", "hidden_act=gelu: need silu"),
    "vocab_size": (30, "vocab_size is 30, the target's 23"),
}


@pytest.mark.parametrize("key", list(DEEPSPEC_FAULTS))
def test_deepspecs_settings_are_read_or_refused(key, place, frozen):
    place.config[key], message = DEEPSPEC_FAULTS[key]
    place.refused(message, frozen)


SPECULATORS_FAULTS = {
    "aux_hidden_state_layer_ids": (None, "aux_hidden_state_layer_ids=None: need the target's layers"),
    "draft_vocab_size": (11, r"lm_head\.weight has 9 rows: config\.json says draft_vocab_size=11"),
    "target_hidden_size": (32, "target_hidden_size is 32, the target's 16"),
    "dflash_config": ({"top_k": 3}, "dflash_config: top_k=3 is not understood"),
    "is_causal": (True, "is_causal=True: speculators's blocks are not causal"),
}


@pytest.mark.parametrize("place", ["gated, speculators"], indirect=True)
@pytest.mark.parametrize("key", list(SPECULATORS_FAULTS))
def test_speculators_settings_are_read_or_refused(key, place, frozen):
    place.config[key], message = SPECULATORS_FAULTS[key]
    place.refused(message, frozen)


@pytest.mark.parametrize("place", ["rnn, DeepSpec", "gated, speculators"], indirect=True)
def test_every_missing_tensor_is_named(place, frozen):
    whole = place.tensors
    for name in whole.keys() - {"embed_tokens.weight", "t2d"}:
        place.tensors = {other: tensor for other, tensor in whole.items() if other != name}
        place.refused(f"lacks tensors .*{name}", frozen)


def test_a_head_of_another_kind_is_named(place, frozen):
    place.config["markov_head_type"] = "gated"
    place.refused(r"lacks tensors markov_head\.gate_proj\.bias, markov_head\.gate_proj\.weight", frozen)
    place.config["markov_head_type"] = "vanilla"
    place.tensors["markov_head.joint_proj.bias"] = torch.zeros(9)
    place.refused(r"holds unknown tensors markov_head\.joint_proj\.bias", frozen)


@pytest.mark.parametrize("place", ["gated, speculators"], indirect=True)
def test_maps_that_contradict_each_other_are_refused(place, frozen):
    place.tensors["t2d"] = ~place.tensors["t2d"]
    place.refused("t2d and d2t contradict each other", frozen)


@pytest.mark.parametrize("place", ["vanilla, speculators, not from the root"], indirect=True)
def test_a_threshold_needs_a_confidence_head(place, frozen):
    with pytest.raises(UsageError, match=r"confidence=0\.5: it has no confidence head"):
        place.load(frozen, ",confidence=0.5")


def test_other_families_take_no_threshold(tmp_path, frozen):
    with pytest.raises(UsageError, match="option confidence: family dflash takes"):
        Place(tmp_path / "dflash", FORMS["dflash, DeepSpec"]).load(frozen, ",confidence=0.5")


def test_heads_without_their_settings_are_refused(place, frozen):
    del place.config["markov_rank"]
    place.refused(r"embed_tokens\.weight, lm_head\.weight of its own, but config\.json is that of no layout", frozen)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del place.tensors[name]
    place.refused("DSpark's heads, but config.json has no markov_rank", frozen)
