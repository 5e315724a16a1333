"""IBM's MLP speculators in every published form against their formulas, one path at a time."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from heads_place import Place
from heads_place import near as close
from torch import Tensor

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.families.heads import newest_hidden_info
from outrider_proto.tree import ROOT

TARGET = "target_tiny"
V, HIDDEN = 256, 64  # target_tiny
TEXT = [7, 41, 199, 3, 88, 120]


@dataclass
class Form:
    """A way in which heads are published."""

    inner: int = 48
    heads: int = 3
    scale_input: bool = False
    tied: bool = False
    prefix: str = "speculator."
    copies: str = "first"  # of tied tensors: first, last or all
    config: dict[str, Any] = field(default_factory=dict)


FORMS = {
    "plain": Form(),
    "scaled input": Form(scale_input=True),
    "tied": Form(tied=True, scale_input=True, heads=4),
    "tied, all copies": Form(tied=True, copies="all", heads=4),
    "tied, the last copies": Form(tied=True, copies="last", heads=4),
    "without a prefix": Form(prefix="", heads=5),
    "a config that says little": Form(config={"inner_dim": None, "n_candidates": None, "tie_weights": None}),
}


class Heads:
    """Random heads of some form, saved; and their formulas."""

    def __init__(self, form: Form, place: Place) -> None:
        self.form, self.place = form, place
        generator = torch.Generator().manual_seed(8)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) * shape[-1] ** -0.5 * 1.5

        self.whole: dict[str, Tensor] = {}
        for head in range(form.heads):
            width = HIDDEN if head == 0 else form.inner
            own = {"proj": random(form.inner, width), "emb": random(V, form.inner), "head": random(V, form.inner)}
            own |= {"ln.weight": 1 + random(form.inner), "ln.bias": random(form.inner)}
            for name, tensor in own.items():
                part, _, leaf = name.partition(".")
                first = f"{part}.{min(head, 1) if part == 'proj' else 0}.{leaf or 'weight'}"
                tensor = self.whole.get(first, tensor) if form.tied else tensor
                self.whole[f"{part}.{head}.{leaf or 'weight'}"] = tensor
        self.tensors = {form.prefix + name: tensor.clone() for name, tensor in self.whole.items() if self._kept(name)}
        config = {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "vocab_size": V,
            "emb_dim": HIDDEN,
            "inner_dim": form.inner,
            "n_predict": form.heads,
            "top_k_tokens_per_head": [4, 3, 2, 2, 1][: form.heads],
            "n_candidates": 5,
            "scale_input": form.scale_input,
            "tie_weights": form.tied,
        }
        self.config = {key: value for key, value in (config | form.config).items() if value is not None}

    def _kept(self, name: str) -> bool:
        part, number, _ = name.split(".")
        if not self.form.tied or self.form.copies == "all" or (part == "proj" and number == "0"):
            return True
        last = str(self.form.heads - 1)
        return number == (last if self.form.copies == "last" else "1" if part == "proj" else "0")

    def save(self) -> "Heads":
        self.place.write(self.tensors, self.config)
        return self

    def expected(self, feature: Tensor, line: list[int]) -> Tensor:
        """Logits [V] for the successor of the tokens after the feature's."""
        form = self.form
        kept = 0.5 ** (0.5 / form.heads)
        added = math.sqrt((1 - kept**2) * form.inner / 2)
        state = feature / (feature.square().mean() + 1e-6).sqrt() / math.sqrt(2) if form.scale_input else feature
        for head, token in enumerate(line):
            mixed = kept * (self.whole[f"proj.{head}.weight"] @ state) + added * self.whole[f"emb.{head}.weight"][token]
            rms = mixed / (mixed.square().mean() + 1e-6).sqrt()
            x = rms * self.whole[f"ln.{head}.weight"] + self.whole[f"ln.{head}.bias"]
            state = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return self.whole[f"head.{len(line) - 1}.weight"] @ state


@pytest.fixture
def heads(request, tmp_path, target, frozen) -> Heads:
    place = Place(tmp_path / "heads", target, frozen, "model.safetensors")
    return Heads(FORMS[getattr(request, "param", "plain")], place).save()


FEATURE = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(3))


def fed(heads: Heads, frozen: TargetWeights, lag: int = 0, options: str = ""):
    state = load_drafter(f"{heads.place.path}{options}", frozen).new_state()
    state.append(TEXT)
    state.add_features(len(TEXT) - 2 - lag, FEATURE)
    return state


@pytest.mark.parametrize("heads", list(FORMS), indirect=True)
@pytest.mark.parametrize("lag", [0, 1])
def test_agrees_with_its_formulas(heads, lag, frozen, golden):
    """Along the branches of a tree, from a feature that is one token old or older."""
    state, tap = fed(heads, frozen, lag), load_tap(heads.place.path, golden / TARGET)
    assert tap.info == newest_hidden_info(HIDDEN)
    levels = heads.form.heads - lag
    assert state.max_levels == levels
    if not levels:
        return
    before = TEXT[len(TEXT) - 1 - lag :]
    close(state.root_logits(), heads.expected(FEATURE[0], before))
    nodes: list[tuple[int, list[int]]] = [(ROOT, [])]
    for level in range(1, levels):
        below = [(row, [*path, token]) for row, path in nodes for token in (level, 200 + level)]
        logits = state.expand([path[-1] for _, path in below], [row for row, _ in below])
        for (_, path), row in zip(below, logits, strict=True):
            close(row, heads.expected(FEATURE[0], [*before, *path]))
        first = sum(2**each for each in range(1, level))
        nodes = [(first + number, path) for number, (_, path) in enumerate(below)]


@pytest.mark.parametrize("heads", ["plain", "tied, all copies", "a config that says little"], indirect=True)
def test_drafts_as_many_paths_as_its_config_says(heads, frozen):
    count = heads.form.heads
    assert load_drafter(heads.place.path, frozen).plan == TreeShape(breadth=5, levels=count, budget=5 * count)
    heads.config |= {"top_k_tokens_per_head": [1] * count, "n_candidates": 7}
    plan = load_drafter(heads.save().place.path, frozen).plan
    assert plan == TreeShape.chain(count)
    tree = grow_tree(fed(heads, frozen), plan)
    assert len(tree) == count


TWO = torch.zeros(2, 2)
REFUSED = {  # of a form: a setting or a tensor that is changed, and what the refusal says
    "plain": [
        ("speculator.proj.1.weight", TWO, r"tensor proj\.1\.weight has shape \[2, 2\]: need \[48, 48\]"),
        ("speculator.proj.0.weight", TWO, "emb_dim is 2, the target's 64"),
        ("speculator.ln0.weight", TWO, r"holds unknown tensors ln0\.weight"),
        ("vocab_size", 300, "vocab_size is 300, the target's 256"),
        ("emb_dim", 32, "config.json says emb_dim=32"),
        ("inner_dim", 32, "config.json says inner_dim=32"),
        ("n_predict", 4, "holds 3 heads: config.json says n_predict=4"),
        ("n_candidates", 0, "n_candidates=0: need a whole number"),
        ("top_k_tokens_per_head", [5, 4], "top_k_tokens_per_head has 2 entries: need 3"),
        ("method", "sum_lstm", "method=sum_lstm is not understood: need one of emb_dim"),
        ("scale_input", "yes", "scale_input=yes: need true or false"),
        ("tie_weights", True, r"tie_weights=True: emb\.1\.weight is not emb\.0\.weight"),
    ],
    "tied": [  # of which its config must say how many there are
        ("n_predict", 1, "n_predict=1: need 2 to 64"),
    ],
}


@pytest.mark.parametrize(
    ("heads", "name", "value", "message"),
    [(form, *row) for form, rows in REFUSED.items() for row in rows],
    indirect=["heads"],
)
def test_what_does_not_fit_is_refused(heads, name, value, message):
    (heads.tensors if isinstance(value, Tensor) else heads.config)[name] = value
    heads.save().place.refused(message)
