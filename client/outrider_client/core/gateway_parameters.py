"""The parameters of other servers' APIs that apps send to the gateway: hints, other spellings, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from outrider_client.core.config import UNLIMITED

# Hints of OpenAI's API, vLLM's, Ollama's and llama.cpp's: whatever they say, the answer is the same.
# fmt: off
HINTS = frozenset({
    "cache_prompt", "id_slot", "include_reasoning", "keep_alive", "low_vram", "main_gpu", "metadata", "mirostat_eta",
    "mirostat_tau", "num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "parallel_tool_calls",
    "prediction", "priority", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
    "request_id", "safety_identifier", "service_tier", "store", "timings_per_token", "use_mlock", "use_mmap", "user",
    "verbosity",
})
# fmt: on
MESSAGE_HINTS = frozenset({"name", "partial", "prefix", "provider_specific_fields", "reasoning", "reasoning_content"})
# Other spellings of ours.
SPELLINGS = {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "guided_json": "response_format",
    "json_schema": "response_format",
    "format": "response_format",
    "think": "chat_template_kwargs",
    "enable_thinking": "chat_template_kwargs",
}
_MAX_SETTING_CHARS = 256
# fmt: off
_NO_SETTINGS = frozenset({  # what transformers takes beside a template's settings
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
    "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize",
    "tokenizer_kwargs", "tools", "truncation",
})
# fmt: on
Unsupported = Mapping[str, Mapping[str, tuple[Any, ...]]]  # Any: whatever JSON holds

# Their parameters that would change the answer, by why this gateway has none of them, with the values that change
# nothing. Clients send some of those in every request.
# fmt: off
UNSUPPORTED: Unsupported = {
    "all answers are given, as they were written": {"best_of": (1,), "use_beam_search": (False,)},
    "answers are sampled with temperature, top_p, top_k, min_p, seed, three penalties and logit_bias alone": {
        "length_penalty": (1,), "typical_p": (1,), "tfs_z": (1,), "mirostat": (0,), "dynatemp_range": (0,),
        "dry_multiplier": (0,), "xtc_probability": (0,), "bad_words": ([],), "allowed_token_ids": ([],),
    },
    "answers end where the model ends them, before a text in stop, or at max_tokens": {
        "ignore_eos": (False,), "min_tokens": (0,), "stop_token_ids": ([],), "include_stop_str_in_output": (False,),
    },
    "penalties count all of the text": {"repeat_last_n": (-1,)},
    "fill-in-the-middle is not offered by /v1/completions; a prompt may have the model's own tokens for it": {
        "suffix": ("",),
    },
    "answers are text without special tokens": {
        "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
    },
    "log probabilities are of the answer's tokens": {"prompt_logprobs": ()},
    "answers have the form that response_format says": {
        "structured_outputs": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (), "grammar": ("",),
    },
    "functions are called as tools": {"functions": ([],), "function_call": ("none", "auto")},
    "the target's own chat template is used": {"chat_template": (), "documents": ([],)},
    "the model reads and writes text only": {"modalities": (["text"],), "audio": ()},
    "this gateway offers no such service": {"web_search_options": (), "moderation": ()},
}
MESSAGE_UNSUPPORTED: Unsupported = {
    "functions are called as tools": {"function_call": ()},
    "the chat template gets role and content only": {
        "refusal": ("",), "annotations": ([],),
    },
    "the model reads text only": {"audio": ()},
}
# fmt: on


def in_our_words(body: Mapping[str, Any]) -> dict[str, Any]:  # Any: whatever JSON holds
    """Return a body in which parameters with other spellings have ours, Ollama's `options` among them."""
    options = body.get("options")
    given = {name: value for name, value in body.items() if value is not None}
    if isinstance(options, Mapping):
        given = {**options, **given, "options": None}
    match given.get("structured_outputs"):
        case {"json": schema, **others} if not others:  # others are refused by name
            given["structured_outputs"], given["guided_json"] = None, schema
    for theirs, ours in SPELLINGS.items():
        if (value := given.pop(theirs, None)) is None:
            continue
        if given.get(ours) is not None:
            what = f"means the same as {ours}: give one of them"
            raise PydanticCustomError("unsupported_parameter", "{what}", {"name": theirs, "what": what})
        given[ours] = _translated(theirs, ours, value)
    for name in ("max_tokens", "max_completion_tokens"):
        if given.get(name) == -1:
            given[name] = UNLIMITED
    return given


def _translated(theirs: str, ours: str, value: Any) -> Any:  # Any: whatever JSON holds
    match ours, value:
        case "response_format", "json":
            return {"type": "json_object"}
        case "response_format", str() if theirs != "format":
            try:
                return _translated("", ours, json.loads(value))
            except (ValueError, RecursionError):
                return value
        case "response_format", Mapping():
            return {"type": "json_schema", "json_schema": {"schema": value}}
        case "chat_template_kwargs", _:
            return {"enable_thinking": value}
        case _:
            return value


def drop_defaults(
    body: Mapping[str, Any], hints: Container[str], unsupported: Unsupported
) -> dict[str, Any]:  # Any: whatever JSON holds
    """Drop hints, nulls, and unsupported parameters without effect; raise for any other unsupported one."""
    effective = {name: value for name, value in body.items() if value is not None and name not in hints}
    for why, name, no_ops in ((why, *each) for why, names in unsupported.items() for each in names.items()):
        value = effective.pop(name, None)
        # Python holds True == 1: "n": true is not "n": 1.
        if value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in no_ops):
            continue
        values = " or ".join(map(json.dumps, no_ops))
        what = f"{why}: leave it out, or send {values}" if values else f"{why}: leave it out"
        raise PydanticCustomError("unsupported_parameter", "{what}", {"name": name, "what": what})
    return effective


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:  # Any: whatever JSON holds
    """Return settings for a chat template as they are. Raises PydanticCustomError for any that could do harm there."""
    for name, value in settings.items():
        is_plain = isinstance(value, int | float) or (
            isinstance(value, str) and len(value) <= _MAX_SETTING_CHARS and value.isprintable()
        )
        if name in _NO_SETTINGS or not name.isidentifier() or not is_plain:
            what = "need the template's own names, with numbers, true, false or lines of up to 256 characters"
            raise PydanticCustomError("setting", "{what}", {"what": what})
    return settings
