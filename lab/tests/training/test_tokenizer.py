"""The tokenizer: any text comes back, digits stand alone, chats are laid out as the training stream has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outrider_lab.corpus import generate
from outrider_lab.training.tokenizer import SPECIALS, encode_samples, save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def loaded(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(tokenizer, directory, max_length=1024)
    assert {path.name for path in directory.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    return AutoTokenizer.from_pretrained(directory)


@given(text=st.text(max_size=60))
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text or any(special in text for special in SPECIALS)


def test_chat_template_equals_the_training_stream(tokenizer, loaded):
    samples = list(generate("chat", "test", 1, 5))
    for sample, encoded in zip(samples, encode_samples(tokenizer, samples), strict=True):
        chat = [message.as_dict() for message in sample.conversation()]
        assert loaded.apply_chat_template(chat)["input_ids"] == list(encoded.ids)
        prompt = loaded.apply_chat_template(chat[:-1], add_generation_prompt=True)["input_ids"]
        assert list(encoded.ids)[: len(prompt)] == prompt
        assert encoded.ids[-1] == loaded.eos_token_id
        replies = [i for i, reply in zip(encoded.ids, encoded.is_reply, strict=True) if reply]
        assert tokenizer.decode(replies).endswith(sample.answer)


def test_training_is_deterministic():
    texts = ["one two three two three", "three two one"] * 20
    assert train_tokenizer(texts, 300).to_str() == train_tokenizer(texts, 300).to_str()
