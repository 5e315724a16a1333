"""An independent drafter: any small causal language model with the target's tokens, in Hugging Face's layout.

It needs nothing of the target but its tokens, so it drafts online and offline alike. `tie_to_target=true` gives it the
target's embedding and lm_head in place of its own: the independent baseline of the MoA paper was trained so
(huawei-noah/HEBO, branch mixture-of-attentions, moa_spec/models/train/independent.py), though its files hold others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from outrider_drafters.checkpoints.draft_vocabulary import select_rows
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.families.family import Family
from outrider_drafters.families.independent.drafter import NAME, IndependentDrafter, check_vocabulary
from outrider_drafters.families.independent.network import CausalModel, num_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIE_TO_TARGET = DrafterOption.switch("tie_to_target", "use the target's embedding and lm_head")

ARCHITECTURES = ("ForCausalLM", "LMHeadModel")

PREFIXES = ("model.", "transformer.", "gpt_neox.", "language_model.")  # under which such a model keeps its layers


def _recognizes(files: DrafterFiles) -> bool:
    """Recognize a whole language model; files that also hold heads went to an earlier family."""
    named = any(str(name).endswith(ARCHITECTURES) for name in files.config.get("architectures") or ())
    return named and any(name.startswith(PREFIXES) for name in files.names)


def _load(files: DrafterFiles, target: TargetWeights) -> Drafter:
    tied = files.options.get(TIE_TO_TARGET) or False

    tokens = target.draft_tokens

    def prepare(model: PreTrainedModel) -> set[str]:
        nonlocal tokens
        if tied:
            return _tie(model, files, target)
        check_vocabulary(files, num_embeddings(model), target)
        tokens = _cut_head(model, target.draft_tokens)
        return set()

    model = CausalModel.load(files.directory, target.embed, prepare)
    return IndependentDrafter(model, target.sizes.vocab, tokens)


def _cut_head(model: PreTrainedModel, wanted: Tensor | None) -> Tensor | None:
    """Give the model a head of the wanted tokens' rows alone, and return the tokens of these rows."""
    if wanted is None:
        return None
    accessors: Any = model  # transformers' are partly untyped
    own: nn.Linear = accessors.get_output_embeddings()
    weight, tokens = select_rows(own.weight.detach(), None, wanted)
    head = nn.Linear(weight.shape[1], len(weight), bias=own.bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    if own.bias is not None:
        head.bias = nn.Parameter(select_rows(own.bias.detach(), None, wanted)[0], requires_grad=False)
    accessors.set_output_embeddings(head)
    return tokens


def _tie(model: PreTrainedModel, files: DrafterFiles, target: TargetWeights) -> set[str]:
    """Replace the model's embedding and lm_head by the target's. Returns the names of the replaced tensors."""
    files.need_equal("hidden size", model.config.get_text_config().hidden_size, target.sizes.hidden)
    accessors: Any = model  # transformers' are partly untyped
    own = (accessors.get_input_embeddings().weight, accessors.get_output_embeddings().weight)
    # With duplicates: a tied weight has two names, and files may lack either.
    names = {name for name, tensor in model.named_parameters(remove_duplicate=False) if any(tensor is o for o in own)}
    # On meta: initial weights of this size would take seconds, and are replaced at once.
    embedding = nn.Embedding(target.sizes.vocab, target.sizes.hidden, device="meta")
    embedding.weight = nn.Parameter(target.embed, requires_grad=False)
    head = nn.Linear(target.sizes.hidden, len(target.lm_head), bias=False, device="meta")
    head.weight = nn.Parameter(target.lm_head, requires_grad=False)
    accessors.set_input_embeddings(embedding)
    accessors.set_output_embeddings(head)
    return names


FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="goes on",
    trees="dynamic",
    recognizes=_recognizes,
    drafter=_load,
    tap=lambda files, target, like: None,
    asked=3,  # any whole model, even one that also holds heads or MTP layers
    options=(TIE_TO_TARGET, DRAFT_VOCAB_OPTION),
)
