"""A tokenizer without transformers, whose import alone takes a second.

It serves directories that are described completely by tokenizer.json and a simple chat template; for all others
tokenizer.py asks transformers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider_client.core.prompt import PlainMessage
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")  # of transformers: tokenizer.json as it is
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
_KNOWN = {  # keys of tokenizer_config.json that are supported or have no effect
    *_SPECIAL,
    *_MORE_SPECIAL,
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "model_max_length",
    "tokenizer_class",
}
_IN_TEMPLATES = {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", *_SPECIAL}
NO_TEMPLATE = "this target has no chat template: give the prompt raw (--raw)"
NO_TOOLS = "this target's chat template shows no tools"
Config = Mapping[str, Any]  # Any: whatever JSON holds
ToolDescription = Mapping[str, Any]  # as above; a function in OpenAI's form


class TextTokenizer(ABC):
    """A target's tokenizer. Raises UsageError."""

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of this text alone, without special tokens at its beginning or end."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str: ...

    @abstractmethod
    def _render(self, messages: Sequence[PlainMessage], tools: Sequence[ToolDescription] | None) -> str:
        """Return the chat template's text. Raises UsageError without a template, and whatever the template does."""

    def encode_chat(self, messages: Sequence[PlainMessage]) -> list[int]:
        """Return the tokens of the chat template over the messages, up to where the answer begins."""
        return self.encode_part(self.render(messages))

    def encode_with_tools(self, messages: Sequence[PlainMessage], tools: Sequence[ToolDescription]) -> list[int]:
        """Return the tokens of a chat in which functions may be called, as the template shows those.

        Raises UsageError for a template that shows none.
        """
        return self.encode_part(self.render(messages, tools))

    def render(self, messages: Sequence[PlainMessage], tools: Sequence[ToolDescription] | None = None) -> str:
        """Return the chat template's text over the messages. Raises UsageError for messages it rejects."""
        try:
            return self._render(messages, tools)
        except UsageError:
            raise
        except Exception as error:  # a template is a program, and may fail like one
            raise UsageError(f"the chat template does not take these messages: {error}") from error


class PlainTokenizer(TextTokenizer):
    """A tokenizer on the tokenizers library. `names`: special tokens that templates may refer to by name."""

    def __init__(self, tokenizer: Tokenizer, template: Template | None, names: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._names = names

    def encode(self, text: str) -> list[int]:
        return self._ids(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        return self._ids(text, add_special_tokens=False)

    def _render(self, messages: Sequence[PlainMessage], tools: Sequence[ToolDescription] | None) -> str:
        if self._template is None:
            raise UsageError(NO_TEMPLATE)
        if tools is not None:  # templates that show tools write them with `tojson`, and are transformers' to render
            raise UsageError(NO_TOOLS)
        return self._template.render(messages=list(map(dict, messages)), add_generation_prompt=True, **self._names)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # Unlike `encode`, the batch releases the GIL: a long text must not stop the other threads.
        [encoded] = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def plain_tokenizer(directory: Path) -> PlainTokenizer | None:
    """Return a tokenizer for `directory`, or None where transformers might behave differently."""
    try:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict) or not _is_simple(config) or _other_templates(directory):
        return None
    source = config.get("chat_template")
    template = None if source is None else _compiled(source)
    tokenizer = _read(directory / "tokenizer.json", config)
    if tokenizer is None or (source is not None and template is None):
        return None
    names = {name: config[name] for name in _SPECIAL if config.get(name) is not None}
    return PlainTokenizer(tokenizer, template, names)


def _is_simple(config: Config) -> bool:
    texts = [config.get(name) for name in (*_SPECIAL, "chat_template")]
    return (
        config.keys() <= _KNOWN
        and all(isinstance(config.get(name) or [], list) for name in _MORE_SPECIAL)
        and config.get("tokenizer_class") in _CLASSES
        and all(text is None or isinstance(text, str) for text in texts)
        and all(isinstance(token, str) for token in _specials(config))
    )


def _specials(config: Config) -> list[Any]:
    """Return all tokens that the configuration calls special."""
    lists = (config.get(name) or () for name in _MORE_SPECIAL)
    return [config[name] for name in _SPECIAL if config.get(name)] + [token for tokens in lists for token in tokens]


def _other_templates(directory: Path) -> bool:
    others = ("chat_template.jinja", "chat_template.json", "additional_chat_templates", "special_tokens_map.json")
    return any((directory / name).exists() for name in (*others, "added_tokens.json"))


def _read(file: Path, config: Config) -> Tokenizer | None:
    """Read tokenizer.json; None unless every special token is special in the file too."""
    # transformers adds special tokens that the file lacks, so such a file gives other ids there than here.
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises plain Exception; transformers will give the better message
        return None
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    if not special.issuperset(_specials(config)):
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _compiled(source: str) -> Template | None:
    """Compile a chat template as transformers does; None if it needs more than is supported here."""
    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed: a template is a program that comes with the model's files.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals.clear()
    try:
        wanted = meta.find_undeclared_variables(environment.parse(source))
        if "tojson" in source or not wanted <= _IN_TEMPLATES:
            return None
        environment.globals["raise_exception"] = _raise
        return environment.from_string(source)
    except Exception:  # foreign code: jinja's parser and Python's compiler fail in many ways
        return None


def _raise(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
