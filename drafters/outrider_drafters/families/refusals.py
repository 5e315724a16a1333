"""Published heads that no family reads: refused by their names, with what to do.

Settings count only where they are a head's own: a flat config.json is often a copy of the target's.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.readers.config import KIND

INDEPENDENT = "independent"
HEADS = (None, "dflash", "dspark", "eagle2", "eagle3", "peagle")
PLAIN = "give a head of another kind: DFlash 1, DSpark, EAGLE-3 with plain blocks"
WHOLE = "give a drafter of another family, or family=independent where it holds a whole model"
PLAIN_WEIGHTS = (
    "export them as they were before llm-compressor, GPTQ, AWQ, bitsandbytes or fp8 (`outrider-models bundle --weights "
    "int8` quantizes those), or delete the key if these are not quantized"
)
SPECULATORS = ("dflash", "dspark", "eagle", "eagle3", "peagle")
NEVER = r"(?!)"
CALLED = r"(architectures|speculators_model_type|(dflash_config\.)?projector_type)=.*"
INNER = r"dflash_config\."
_MOST_READ = 400  # characters: the patterns take the square of a text's length


class Unsupported(NamedTuple):
    """`tensors` and `settings` ("key=value") tell it; a head of `families` (None: of none; empty: any) may be it."""

    name: str
    tensors: str = NEVER
    settings: str = NEVER
    remedy: str = PLAIN
    families: tuple[str | None, ...] = HEADS


UNSUPPORTED = (
    Unsupported("quantized weights", r".*\.(weight_(scale|packed|shape|zero_point|global_scale).*|(input|output)_scale|"
                r"qweight|qzeros|scales|g_idx|SCB|absmax|quant_map|quant_state\..*)$",
                r"(quantization|compression)(_config)?=", PLAIN_WEIGHTS, ()),
    Unsupported("LiLiCorr", r"lilicorr\.", rf"{CALLED}lilicorr|{INNER}lilicorr_"),
    Unsupported("DFlash 2", r".*(attention_conv|mlp_conv|candidate_selector)",
                rf"{CALLED}dflash2|{INNER}(selector_rank|conv_kernel_size)="),
    Unsupported("Domino", r"(logit_head\.)?(prefix_gru|embed_proj)\.", rf"{CALLED}domino"),
    Unsupported("DSpine", r"injection\.|transfer_(codes|ready)", rf"{CALLED}dspine|dspine_config="),
    Unsupported("H-Spec", r".*mamba", rf"{CALLED}hspec|hspec_config="),
    Unsupported("EDSD", r"(model\.)?(edfuse|embnorm)\.", rf"{CALLED}edsd"),
    Unsupported("latent or delta attention (MLA, KDA)", r".*(kv_a_proj_with_mqa|kv_b_proj|A_log$|_conv1d)",
                rf"{INNER}attention_modes?=.*(kda|mla)|architectures=.*(kda|mla|deepseek\w*(dflash|dspark|eagle))|draft_layer_types="),
    Unsupported("experts (MoE)", r".*(\.experts\.|\.mlp\.gate\.weight$|shared_expert|\.router\.)",
                rf"moe_preset=|{INNER}moe_dispatch=|architectures=.*moe\w*eagle"),
    Unsupported("Laguna's DFlash", r".*(aux_hidden_norms|self_attn\.g_proj|enc\.aux_norm|attn_gate)",
                r"architectures=.*(dflashlaguna|lagunadflash)"),
    Unsupported("MiMo's DFlash", r".*attention_sink_bias", rf"{INNER}attention_(sink_bias|value_scale)="),
    Unsupported("attention to the target's K/V", NEVER, rf"{INNER}conditioning_source="),
    Unsupported("blocks of Gemma's kind", r".*(pre|post)_feedforward_layernorm", families=("dflash", "dspark")),
    Unsupported("parallel Medusa heads", r"parallel_draft_heads\."),
    Unsupported("multi-token-prediction heads of targets with linear attention, which the server does not run",
                r"(.*\.)?mtp\.", NEVER, WHOLE, (None, INDEPENDENT)),
    Unsupported("a multi-token-prediction layer, whose latent attention and experts are too much for a client",
                r".*(\.(eh_proj|enorm|hnorm)\.weight$|mtp_layers\.)", NEVER, WHOLE, (None, INDEPENDENT)),
)  # fmt: skip


def refuse_unsupported(files: DrafterFiles, family: str | None, *, is_chosen: bool) -> None:
    """Raise UsageError for files of a kind in the table; a whole model that was chosen may hold parts besides."""
    inner = {f"{key}.{name}": value for key, part in files.config.items() if isinstance(part, Mapping)
             for name, value in part.items()}  # fmt: skip
    settings = [f"{key}={value}"[:_MOST_READ] for key, value in {**files.config, **inner}.items() if value]
    names = [name[:_MOST_READ] for name in sorted(files.names)]
    for kind in UNSUPPORTED:
        if kind.families and (family not in kind.families or (is_chosen and family == INDEPENDENT)):
            continue
        evidence = [line for line in settings if re.match(kind.settings, line, re.IGNORECASE)]
        evidence += [name for name in names if re.match(kind.tensors, name)]
        if evidence:
            raise files.fault(f"{kind.name} ({evidence[0][:80]}): not supported; {kind.remedy}")
    if (said := files.config.get(KIND)) not in (None, *SPECULATORS):
        raise files.fault(
            f"{KIND}={said}: not supported; need one of {', '.join(SPECULATORS)}. If it only trains one of these"
            " networks in another way, write that name"
        )
