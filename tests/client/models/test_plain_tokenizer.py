"""The quick way to tokens gives what transformers gives, or leaves it to transformers."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_client.models.plain_tokenizer import PlainTokenizer, plain_tokenizer
from outrider_client.models.tokenizer import TargetTokenizer, load_tokenizer
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError

ROLES = ("user", "assistant", "system")


@pytest.fixture(scope="module")
def both() -> tuple[PlainTokenizer, TargetTokenizer]:
    quick = load_tokenizer(target_dir())
    assert isinstance(quick, PlainTokenizer)
    return quick, TargetTokenizer(target_dir())


TEXTS = st.text(max_size=40) | st.lists(
    st.sampled_from(["<|eos|>", "<|user|>", " ", "\n", "12", "boxes", "é", "\U0001f600", "<|"]), max_size=8
).map("".join)


@settings(max_examples=60)
@given(text=TEXTS)
def test_texts(both, text):
    quick, slow = both
    assert quick.encode(text) == slow.encode(text)
    assert quick.encode_part(text) == slow.encode_part(text)


@settings(max_examples=40)
@given(turns=st.lists(st.tuples(st.sampled_from(ROLES), TEXTS), min_size=1, max_size=4))
def test_chats(both, turns):
    quick, slow = both
    messages = [{"role": role, "content": text} for role, text in turns]
    assert quick.render(messages) == slow.render(messages)
    assert quick.encode_chat(messages) == slow.encode_chat(messages)


@settings(max_examples=40)
@given(tokens=st.lists(st.integers(0, 1000), max_size=12))
def test_tokens(both, tokens):
    quick, slow = both
    assert quick.decode(tokens) == slow.decode(tokens)


@pytest.fixture
def changed(tmp_path):
    """The embedded tokenizer's directory with another configuration."""

    def make(**fields):
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            shutil.copy(target_dir() / name, tmp_path)
        file = tmp_path / "tokenizer_config.json"
        config = json.loads(file.read_text()) | fields
        file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
        return tmp_path

    return make


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer_class": "LlamaTokenizerFast"},
        {"add_bos_token": True},
        {"add_prefix_space": True},
        {"extra_special_tokens": ["<|new|>"]},
        {"additional_special_tokens": 5},
        {"bos_token": {"content": "<|bos|>"}},
        {"chat_template": "{{ messages | tojson }}"},
        {"chat_template": "{% set ns = namespace(x=1) %}{{ ns.x }}"},
        {"chat_template": "{{ strftime_now('%Y') }}"},
        {"chat_template": "{% for m in messages %}{% break %}{% endfor %}"},
        {"chat_template": "{% generation %}x{% endgeneration %}"},
        {"chat_template": {"default": "x"}},
    ],
)
def test_what_only_transformers_knows(changed, fields):
    assert plain_tokenizer(changed(**fields)) is None


def test_templates_may_refuse(changed):
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    tokenizer = plain_tokenizer(changed(chat_template=template))
    assert tokenizer.render([{"role": "user", "content": "y"}]) == "x"
    with pytest.raises(UsageError, match="no system"):
        tokenizer.render([{"role": "system", "content": "y"}])
    with pytest.raises(UsageError, match="no chat template"):
        plain_tokenizer(changed(chat_template=None)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_templates_stay_in_their_box(changed, template):
    with pytest.raises(UsageError):
        plain_tokenizer(changed(chat_template=template)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ +['x'] }}", "{{ 1 // 0 }}", "{{ messages[0].content['a':] }}"])
@pytest.mark.parametrize("make", [plain_tokenizer, TargetTokenizer])
def test_a_failing_template_is_reported(changed, template, make):
    with pytest.raises(UsageError, match="chat template"):
        make(changed(chat_template=template)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ " + "(" * 500 + "1 }}", "{{ " + "9" * 5000 + " }}", "{% if 1 %}" * 60])
def test_a_template_that_cannot_be_compiled_is_reported(changed, template):
    directory = changed(chat_template=template)
    assert plain_tokenizer(directory) is None
    with pytest.raises(UsageError, match="chat template"):
        load_tokenizer(directory).render([{"role": "user", "content": "y"}])
