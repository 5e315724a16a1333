"""Every published form of DFlash and DSpark, as a directory that a test writes, and its slow formulas."""

import json
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

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
from heads_place import begun
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, load_drafter
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import BEFORE_NORM, LAST
from outrider_drafters.families.dflash.family import LATE_ROWS
from outrider_drafters.load import recognize_family

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
ZLAB = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "rope_theta": THETA,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "num_target_layers": 6,
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 5]},
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW, "use_sliding_window": True}


def sees(query: int, key: int, layer: int, root: int, causal: bool) -> bool:
    """speculators' rule: every row of a sliding layer sees exactly the window's positions before the root."""
    if layer != 0:
        return True
    return min(root, query) - WINDOW <= key and (key <= query or not causal)


def sees_of_zlab(query: int, key: int, layer: int, config: dict[str, Any]) -> bool:
    sliding = "layer_types" in config and layer == 0
    causal = config.get("is_causal", sliding) or config["dflash_config"].get("causal", False)
    return not (causal and key > query) and not (sliding and abs(query - key) >= WINDOW)


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
    whole: bool = True  # with an embedding and a head of its own
    taps: tuple[int, ...] = (0, 4, BEFORE_NORM)

    def config_json(self) -> dict[str, Any]:
        config = json.loads(json.dumps(self.config)) | ({"draft_vocab_size": len(DRAFTED)} if self.few else {})
        if "transformer_layer_config" in config:
            return config | {"transformer_layer_config": QWEN3 | self.nested}
        return config | self.nested

    def tensors(self) -> dict[str, Tensor]:
        rows = len(DRAFTED) if self.few else VOCABULARY
        shapes: dict[str, tuple[int, ...]] = {}
        if self.whole:
            shapes |= {"embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (rows, WIDTH)}
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
        if "dflash_config" in self.config:
            return partial(sees_of_zlab, config=self.config_json())
        return partial(sees, root=root, causal=self.sliding == "causal") if self.sliding else lambda *_: True


def dspark(config: dict[str, Any], kind: str, confidence: str = "") -> dict[str, Any]:
    heads = {"markov_rank": RANK, "markov_head_type": kind, "enable_confidence_head": bool(confidence)}
    heads |= {"confidence_head_with_markov": confidence == "with markov"} if confidence else {}
    return config | heads | ({"speculators_model_type": "dspark"} if "speculators_model_type" in config else {})


FROM_ROOT = {"sample_from_anchor": True}
FORMS = {
    "dflash, DeepSpec": Form(DEEPSPEC),
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
FORMS |= {
    f"z-lab{name}": Form(ZLAB, nested=nested, first=1, whole=False, taps=(2, 4, LAST))
    for name, nested in {
        "": {},
        ", sliding and causal": SLIDING,
        ", sliding, not causal": SLIDING | {"is_causal": False},
        ", causal": {"dflash_config": ZLAB["dflash_config"] | {"causal": True}},
        ", scales": {"input_embedding_scale": 1.5, "output_multiplier": 0.5, "final_logit_softcapping": 2.0},
    }.items()
}
for kind in ("vanilla", "gated", "rnn"):
    FORMS |= {
        f"{kind}, DeepSpec": Form(dspark(DEEPSPEC, kind, "with markov"), kind=kind, confidence="with markov"),
        f"{kind}, speculators": Form(
            dspark(SPECULATORS, kind, "hidden") | FROM_ROOT, kind=kind, confidence="hidden", few=True
        ),
    }
FORMS["confidence alone"] = Form(
    SPECULATORS
    | {"speculators_model_type": "dspark", "markov_rank": 0, "confidence_head_with_markov": False}
    | FROM_ROOT,
    confidence="hidden",
)


def specforge(kind: str, **other: Any) -> dict[str, Any]:
    heads = {"projector_type": "dspark", "attention_mode": "gqa", "confidence_head_alpha": 1.0, "num_anchors": 512}
    inner = dspark(ZLAB["dflash_config"], kind, "with markov") | heads
    return ZLAB | {"architectures": ["DSparkDraftModel"], "dflash_config": inner} | other


OF_SPECFORGE = {"confidence": "with markov", "taps": (2, 4, LAST)}
FORMS |= {
    "vanilla, SpecForge": Form(specforge("vanilla"), first=1, kind="vanilla", whole=False, **OF_SPECFORGE),
    "gated, SpecForge, causal": Form(
        specforge("gated", is_causal=True), first=1, kind="gated", whole=False, **OF_SPECFORGE
    ),
    "rnn, SpecForge, few tokens": Form(specforge("rnn"), first=1, few=True, kind="rnn", whole=False, **OF_SPECFORGE),
    "rnn, SpecForge, few tokens of its own": Form(specforge("rnn"), first=1, few=True, kind="rnn", **OF_SPECFORGE),
    "vanilla, SpecForge for SGLang": Form(
        dspark(specforge("vanilla", architectures=["Qwen3DSparkModel"]), "vanilla", "with markov"),
        kind="vanilla",
        whole=False,
        **OF_SPECFORGE,
    ),
}


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


@cache
def random_target() -> TargetWeights:
    generator = torch.Generator().manual_seed(2)
    embed, head = torch.randn(2, VOCABULARY, WIDTH, generator=generator)
    return TargetWeights(embed, head, TARGET, (0,))


def hidden_states(count: int, taps: tuple[int, ...]) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {tap: torch.randn(count, WIDTH, generator=generator) for tap in taps}


def fed(place: Place, frozen: TargetWeights, lacking: int = 0, options: str = ""):
    """A state with the text and its features, which came bit by bit, and the block's rows by the formulas."""
    drafter, count = place.load(frozen, options), len(TOKENS) - 1 - lacking
    hidden = hidden_states(count, place.form.taps)
    tap = recognize_family(place.files()).tap(place.files(), TARGET, torch.empty(0))
    assert tap.info == drafter.tap
    assert tap.hidden_layers == place.form.taps
    features = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden))
    state = begun(drafter, TOKENS[:5], features[:3])
    state.root_logits()
    state.append(TOKENS[5:])
    if count > 3:
        state.add_features(2, features[2:])
    embed = place.tensors.get("embed_tokens.weight", frozen.embed) * place.config.get("input_embedding_scale", 1.0)
    root, late = (TOKENS[-1], len(TOKENS) - 1), TOKENS[count:-1][-LATE_ROWS:]
    return state, block_rows(place.tensors, embed, list(hidden.values()), root, place.form.sees(root[1]), late)


def expected_path(place: Place, rows: Tensor, path: list[int]) -> tuple[Tensor, Tensor]:
    """Logits [Vd] and confidence after each of root and path, one slot at a time."""
    w, form, logits, confidences = place.tensors, place.form, [], []
    targets = random_target().lm_head[DRAFTED] if form.few else random_target().lm_head
    lm_head, cap = w.get("lm_head.weight", targets), place.config.get("final_logit_softcapping")
    state = torch.zeros(RANK)
    # speculators' Markov head runs over the root's row all the same.
    start = form.first if "dflash_config" in form.config else 0
    for slot, token in enumerate([TOKENS[-1]] * (form.first - start) + [TOKENS[-1], *path], start):
        h, added, e = rows[slot], torch.zeros(len(lm_head)), torch.empty(0)
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
        made = lm_head @ h * place.config.get("output_multiplier", 1.0) + added
        logits.append(made if cap is None else cap * torch.tanh(made / cap))
        if form.confidence:
            inputs = torch.cat((h, e)) if form.confidence == "with markov" else h
            confidences.append((w["confidence_head.proj.weight"] @ inputs + w["confidence_head.proj.bias"]).sigmoid())
    unused = form.first - start
    return torch.stack(logits)[unused:], torch.stack(confidences)[unused:] if confidences else torch.empty(0)
