"""The tokenizer of a language model in GGUF, written as transformers' files.

Byte-level ones (GPT-2's kind) are built here, as llama.cpp reads them: transformers 5.23 splits text as GPT-2 does for
most names of `tokenizer.ggml.pre`, and cuts control tokens with letters beyond ASCII, as DeepSeek's, into pieces.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_proto.errors import UsageError

_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, ending: str = "") -> str:
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{ending}|{first}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
_LLAMA3 = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"
# The patterns that split a text, one after the other, by the names of `tokenizer.ggml.pre` that have them.
_SPLITS: Mapping[str, Sequence[str]] = {
    name: patterns
    for names, patterns in {
        "gpt-2 phi-2 olmo mpt jais trillion mellum a.x-4.0 exaone4 default": [_GPT2],
        "smollm starcoder refact command-r codeshell exaone minerva-7b": [_DIGIT, _GPT2],
        f"{_LLAMA3} dbrx smaug-bpe glm4 chatglm-bpe": [_words(_THREE_DIGITS)],
        "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open": [_words(_DIGIT)],
        "tekken": [_cased_words(_DIGIT)],
        "gpt-4o llama4 kanana2 minimax-m2": [_cased_words(_THREE_DIGITS, f"{_CONTRACTIONS}?")],
        "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT],
        "deepseek-v3 hunyuan-dense": [_THREE_DIGITS, "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3],
    }.items()
    for name in names.split()
}
_WHOLE = (*_LLAMA3.split(), "tekken")  # words of the vocabulary are one token; a text begins with BOS if none says else
# llama.cpp goes by these names: many files do not say which tokens end an answer beside their eos.
_ENDS = frozenset({
    "<|call|>", "<|end_of_text|>", "<|end|>", "<|endoftext|>", "<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|return|>",
    "<EOT>", "<end_of_turn>", "<｜end▁of▁sentence｜>", "[e~[",
})  # fmt: skip
_END_KEYS = ("eot_token_id", "eom_token_id")
_log = logging.getLogger(__name__)


def write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Write tokenizer and chat template, and into generation_config.json which tokens end an answer.

    Raises UsageError for a tokenizer that cannot be read, or splits text in an unknown way.
    """
    try:
        is_byte_level = file.values.get("tokenizer.ggml.model") == "gpt2"
        tokenizer = _byte_level(file) if is_byte_level else _of_transformers(file)
    except UsageError:
        raise
    except Exception as error:  # a file's arrays are trusted, and bad ones fail in many ways
        raise UsageError(f"{file.path}: not a GGUF file whose tokenizer transformers can read ({error})") from error
    tokenizer.save_pretrained(directory)
    _add_ends(directory / "generation_config.json", file)


def _of_transformers(file: GgufFile) -> Any:  # Any: tokenizers have no types
    from tokenizers import decoders, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = str(file.path.parent)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place, gguf_file=file.path.name, local_files_only=True)
    backend = tokenizer.backend_tokenizer
    is_spaced = isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace)
    if is_spaced and file.values.get("tokenizer.ggml.add_space_prefix") is False:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        spaces = decoders.Replace("▁", " ")
        backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _byte_level(file: GgufFile) -> Any:  # Any: as above
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens, kind = file.tokenizer_array("tokens"), file.values.get("tokenizer.ggml.pre")
    whole = kind in _WHOLE
    merges = [tuple(merge.split(" ")) for merge in file.tokenizer_array("merges")]
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges, ignore_merges=whole))
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _splits(file)]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([*splits, to_bytes]), decoders.ByteLevel()
    types = zip(tokens, file.tokenizer_array("token_type"), strict=False)
    added = [(text, each == _CONTROL) for text, each in types if each in (_CONTROL, _USER_DEFINED)]
    backend.add_tokens([AddedToken(text, normalized=False, special=special) for text, special in added])
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: file.values.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    named = {f"{name}_token": tokens[number] for name, number in ids.items() if number is not None}
    if file.values.get("tokenizer.ggml.add_bos_token", whole) and "bos_token" in named:
        bos = named["bos_token"]
        backend.post_processor = processors.TemplateProcessing([bos, "$A"], special_tokens=[(bos, ids["bos"])])
    named["chat_template"] = file.values.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named)  # type: ignore[no-untyped-call] # transformers


def _splits(file: GgufFile) -> Sequence[str]:
    name = file.values.get("tokenizer.ggml.pre")
    if name is None:
        _log.warning("%s: does not say how its text is split (tokenizer.ggml.pre): as GPT-2's", file.path)
    elif name not in _SPLITS:
        raise UsageError(
            f"{file.path}: tokenizer.ggml.pre={name}: a way to split text that is not known here; use the model's"
            " directory in Hugging Face's layout"
        )
    return _SPLITS[name or "default"]


def _add_ends(path: Path, file: GgufFile) -> None:
    typed = enumerate(zip(file.tokenizer_array("tokens"), file.tokenizer_array("token_type"), strict=False))
    named = {text: i for i, (text, kind) in typed if kind in (_CONTROL, _USER_DEFINED) and text in _ENDS}
    if "<|return|>" in named:  # gpt-oss ends each part of an answer with <|end|>
        named.pop("<|end|>", None)
    config = read_json(path) if path.is_file() else {}
    eos = config.get("eos_token_id")
    keyed = [file.values.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    candidates = dict.fromkeys([*(eos if isinstance(eos, list) else [eos]), *keyed, *named.values()])
    ends = [end for end in candidates if end is not None]
    path.write_text(json.dumps({**config, "eos_token_id": ends[0] if len(ends) == 1 else ends}, indent=2) + "\n")
