"""Byte-level tokenizers in GGUF: how text is split, control tokens, what begins a text and ends an answer."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_models import make_model, write_model
from gguf_writing import writing
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from outrider_drafters.checkpoints.gguf_target import write_target
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_proto.errors import UsageError

BYTES = list(bytes_to_unicode().values())
CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
TEMPLATE = "{{ bos_token }}<｜User｜>{{ messages[0]['content'] }}<｜Assistant｜>"


def written(path: Path, pre: str | None = None, control: tuple[str, ...] = (), merged: str = "", **values: Any) -> Path:
    """Write a model, and return the directory made of it. `merged`: a word of the vocabulary that no merges lead to."""
    tokens = [*BYTES, *control, "  ", *([merged] if merged else [])]

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        kinds = [gguf.TokenType.NORMAL] * 256 + [CONTROL] * len(control) + [USER_DEFINED]
        writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * bool(merged))
        writer.add_token_merges([])
        writer.add_bos_token_id(256)
        writer.add_eos_token_id(257)
        writer.add_chat_template(TEMPLATE)
        if "add_bos" in values:
            writer.add_add_bos_token(values["add_bos"])

    model = make_model("llama", {"vocab_size": len(tokens)})
    write_model(path / "m.gguf", "llama", model, {}, tokenizer=tokenizer)
    write_target(path / "m.gguf", path / "made")
    return path / "made"


TEXT = "I'M ab12345, Été漢字!\n\n x"
SPLITS = {  # as llama.cpp, and the tokenizer.json of the models that these are named after
    "gpt-2": "I|'|M| ab|12345|,| Été漢字|!|\n\n| x",
    "smollm": "I|'|M| ab|1|2|3|4|5|,| Été漢字|!|\n\n| x",
    "llama-bpe": "I|'M| ab|123|45|,| Été漢字|!\n\n| x",
    "qwen2": "I|'M| ab|1|2|3|4|5|,| Été漢字|!\n\n| x",
    "tekken": "I|'M| ab|1|2|3|4|5|,| Été漢字|!\n\n| x",
    "gpt-4o": "I'M| ab|123|45|,| Été漢字|!\n\n| x",
    "deepseek-coder": "I|'|M| ab|1|2|3|4|5|,| Été|漢字|!|\n|\n| x",
    "deepseek-v3": "I|'M| ab|123|45|,| Été|漢字|!\n\n| x",
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_models_text_was(tmp_path, pre):
    tokenizer = Tokenizer.from_file(str(written(tmp_path, pre, tuple(DEEPSEEK)) / "tokenizer.json"))
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert [TEXT[first:last] for first, last in spans] == SPLITS[pre].split("|")
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT


def test_an_unknown_way_is_refused_by_name(tmp_path):
    with pytest.raises(
        UsageError, match=r"m\.gguf: tokenizer\.ggml\.pre=deepseek-llm: a way to split text that is not"
    ):
        written(tmp_path, "deepseek-llm", tuple(DEEPSEEK))


def test_control_tokens_of_any_letters_are_whole(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(str(written(tmp_path, "qwen2", tuple(DEEPSEEK))))
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "a  b"}])["input_ids"]
    a, b = (BYTES.index(letter) for letter in "ab")
    assert ids == [256, 258, a, 260, b, 259]
    assert len(tokenizer) == 261, "no token beyond the model's"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a  b"


@pytest.mark.parametrize(
    ("pre", "values", "begins"),
    [
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos": False}, False),
        ("qwen2", {}, False),
        ("qwen2", {"add_bos": True}, True),
    ],
)
def test_a_text_begins_as_the_file_or_its_kind_says(tmp_path, pre, values, begins):
    tokenizer = AutoTokenizer.from_pretrained(str(written(tmp_path, pre, tuple(DEEPSEEK), **values)))
    assert tokenizer("a")["input_ids"] == [256] * begins + [BYTES.index("a")]


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_words_that_no_merges_lead_to(tmp_path, pre, whole):
    tokenizer = Tokenizer.from_file(str(written(tmp_path, pre, tuple(DEEPSEEK), merged="abba") / "tokenizer.json"))
    assert len(tokenizer.encode("abba", add_special_tokens=False)) == (1 if whole else 4)


@pytest.mark.parametrize(
    ("control", "ends"),
    [
        (("<s>", "<|endoftext|>", "<|end|>", "<|user|>"), [257, 258]),
        (("<s>", "<|return|>", "<|end|>", "<|call|>"), [257, 259]),
        (("<s>", "<eos>", "<end_of_turn>"), [257, 258]),
        (tuple(DEEPSEEK), 257),
    ],
)
def test_answers_end_with_tokens_of_known_names(tmp_path, control, ends):
    directory = written(tmp_path, "qwen2", control)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == ends


@pytest.mark.parametrize(("prefix", "tokens"), [(True, ["▁a", "b"]), (False, ["a", "b"])])
def test_sentencepiece_text_begins_with_a_space_unless_the_file_says_not(tmp_path, prefix, tokens):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores([-float(number) for number in range(len(pieces))])
        writer.add_add_space_prefix(prefix)
        writer.add_add_bos_token(False)

    model = make_model("llama", {"vocab_size": len(pieces)})
    write_model(tmp_path / "m.gguf", "llama", model, {}, tokenizer=tokenizer)
    write_target(tmp_path / "m.gguf", tmp_path / "made")
    made = AutoTokenizer.from_pretrained(str(tmp_path / "made"))
    assert made.convert_ids_to_tokens(made("ab")["input_ids"]) == tokens
    assert made.decode(made("ab")["input_ids"]) == "ab"


def test_a_vocabulary_is_what_was_written(tmp_path):
    words = [f"word {i} ä" for i in range(1000)] + [""]
    with writing(tmp_path / "m.gguf", "llama", {"list": ["a", "b"]}) as writer:
        writer.add_token_list(words)
        writer.add_token_types([1, -2, 3])
        writer.add_token_merges([b"\xff"])
    file = GgufFile.read(tmp_path / "m.gguf")
    assert file.tokenizer_array("tokens") == words
    assert file.tokenizer_array("token_type") == [1, -2, 3]
    assert file.of_architecture("list") == ["a", "b"]
    with pytest.raises(UsageError, match="not a readable GGUF file"):
        file.tokenizer_array("merges")
