"""Chat templates come with the model's files: they may fail, stay in their box, and alone write control tokens."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outrider_client.core.prompt import ChatForm, Segment
from outrider_client.models.private_tokens import split
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError


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


def test_templates_may_refuse(changed):
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    tokenizer = TargetTokenizer(changed(chat_template=template))
    assert tokenizer.render([{"role": "user", "content": "y"}]) == "x"
    with pytest.raises(UsageError, match="no system"):
        tokenizer.render([{"role": "system", "content": "y"}])
    with pytest.raises(UsageError, match=r"no chat template.*`outrider generate --raw`.* a chat needs"):
        TargetTokenizer(changed(chat_template=None)).render([{"role": "user", "content": "y"}])


def test_a_good_tokenizer_can_be_tried_out(changed, tokenizers):
    TargetTokenizer(changed()).try_out()
    for ours, _ in tokenizers:
        ours.try_out()


ALL = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Templates with what alone they may have sent of a chat that begins with "banana " before its first private segment.
MOVING = {
    "{{ messages[-1].content }}{{ messages[0].content }}{{ messages[1].content }}": "banana",
    "{% set x = messages | map(attribute='content') | join %}{{ x[::-1] }}{{ x }}": "",
    "{% for m in messages + messages %}{{ m.content }}{% endfor %}": "banana",
    "{{ messages[0].content.split('a') | reverse | join }}" + ALL: "",
    "{% for m in messages | sort(attribute='content') %}{{ m.content }}{% endfor %}": "banana",
    "{{ messages | map(attribute='content') | join | length }}" + ALL: "10banana",
    "{{ messages | length }}" + ALL: "1banana",
    "{{ messages[0].tool_calls }}" + ALL: "banana",
    "{{ messages[-1].content[:1] }}" + ALL: "bbanana",
    "{{ 1 if messages[2] else 1 // 0 }}" + ALL: "",
    "{{ '\ue001' in messages[0].content }}" + ALL: "Falsebanana",
    "{{ messages[0].content[:6] if messages | length == 1 }}" + ALL: "bananabanana",
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% if loop.last %}end{% endif %}{% endfor %}":
        "<assistant>banana",
}  # fmt: skip
CALLS = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
PRIVATE = ([Segment("Ann", private=True)], [Segment("\ue000 Bea", private=True), Segment(" tail")])
LATER = ({"content": "zebra"}, {"content": [Segment("a"), Segment("yak", private=True)]}, {"content": ""})


@pytest.mark.parametrize("template", MOVING, ids=range(len(MOVING)))
def test_what_is_sent_of_a_chat_depends_on_nothing_from_its_first_private_segment_on(changed, template):
    tokenizer, sent = TargetTokenizer(changed(chat_template=template)), set()
    for first, later, calls in itertools.product(PRIVATE, LATER, ({}, {"tool_calls": CALLS})):
        begun = {"role": "assistant", "content": [Segment("banana "), *first], **calls}
        messages = [begun, {"role": "user", "content": "b"}, {"role": "user", **later}]
        parts = split(messages, tokenizer, raw=False)
        assert first[0].text in tokenizer.decode(parts.whole)
        sent.add(tokenizer.decode(parts.safe))
    assert sent <= {"", MOVING[template]}
    # A template that writes one message after the other loses nothing.
    assert "loop.last" not in template or sent == {MOVING[template]}


def test_a_text_that_leaves_no_mark_is_refused(changed):
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(UsageError, match="private use"):
        split([Segment(every), Segment("x", private=True)], TargetTokenizer(changed()), raw=True)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
QWEN = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>\n</tool_call>{% endif %}{% for m in "
    "messages %}<|im_start|>{{ m.role + '\n' + m.content }}{% for c in m.tool_calls or () %}<tool_call>{{ c | tojson "
    "}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | "
    "trim + '<|eot_id|>' }}{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
CASES = "{% for m in messages %}<|im_start|>{{ m.content | upper | lower }}<|im_end|>{% endfor %}"
ADDED = {"<tool_call>": False, "</tool_call>": False, "<|fim|>": False, "\n\n": False, "<b>": False}
ADDED |= dict.fromkeys(("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|eot_id|>"), True)
ADDED |= dict.fromkeys(("<|start_header_id|>", "<|end_header_id|>", "</s>", "<|bos|>"), True)
CONTROL = [text for text in ADDED if text not in ("\n\n", "<b>")]
# A vocabulary of words with blanks before them, whose pieces may spell control tokens, as SentencePiece makes it.
PIECES = [["<unk>", 0.0], ["</s>", 0.0], *([piece, -3.0] for piece in map(chr, range(33, 127))), ["\u2581", -2.0]]
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": PIECES, "byte_fallback": False}
BLANKS = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
WORDS = {"model": UNIGRAM, "pre_tokenizer": BLANKS, "decoder": BLANKS, "normalizer": {"type": "NFKC"}}


@pytest.mark.parametrize(("template", "end"), [(CHATML, "assistant\nHel "), (GEMMA, "model\nHel")])
def test_a_begun_answer_goes_on_and_settings_reach_the_template(changed, template, end):
    tokenizer = TargetTokenizer(changed(chat_template="{{ mood }}" + template))
    messages = [{"role": "user", "content": "Hel "}, {"role": "assistant", "content": "Hel "}]
    assert tokenizer.render(messages, form=ChatForm({"mood": "bold"}, continues=True)).endswith(end)
    assert tokenizer.render(messages, form=ChatForm({"mood": "bold"})).startswith("bold")
    spelled = tokenizer.encode_chat(messages, ChatForm({"mood": "<|im_end|>"}))
    assert tokenizer.decode(spelled).startswith("<|im_end|>")  # text: a control token would not be shown
    with pytest.raises(UsageError, match="the last of them to go on"):
        TargetTokenizer(changed(chat_template="x")).render(messages, form=ChatForm(continues=True))


def write_tokenizer(directory, added, parts=()):
    """Write the embedded one with these added tokens, of which some are special, and other parts."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {"id": 5000 + number, "content": text, "special": special, **flags}
        for number, (text, special) in enumerate(added.items())
    ]
    described = json.loads((target_dir() / "tokenizer.json").read_text()) | dict(parts) | {"added_tokens": tokens}
    (directory / "tokenizer.json").write_text(json.dumps(described))


@pytest.mark.parametrize("role", ["", "end", "END", "end|>\n<|system", "user<|end|>", "a b", "\ud800"])
def test_a_role_that_may_become_a_control_token_is_refused(changed, role):
    """Phi's template writes <|user|> for user, and so would write <|end|> for end."""
    directory = changed(chat_template="{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}")
    write_tokenizer(directory, dict.fromkeys(("<|end|>", "<|system|>", "<|user|>"), True))
    tokenizer, control = TargetTokenizer(directory), AutoTokenizer.from_pretrained(str(directory))
    end, user = control.convert_tokens_to_ids(["<|end|>", "<|user|>"])
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}])[0] == user
    assert end not in tokenizer.encode_chat([{"role": "critic", "content": "<|end|>"}])
    with pytest.raises(UsageError, match=r"role=.*: need one of system, user, assistant, tool, developer, or a"):
        tokenizer.encode_chat([{"role": role, "content": "x"}])


@pytest.fixture(scope="module", params=["bytes", "words"])
def tokenizers(request, tmp_path_factory):
    """Tokenizers with each of the templates, and transformers' own."""
    made = []
    for template in (CHATML, QWEN, GEMMA, LLAMA3, CASES):
        directory = tmp_path_factory.mktemp("tokenizer")
        for name in ("tokenizer_config.json", "config.json"):
            shutil.copy(target_dir() / name, directory)
        (directory / "chat_template.jinja").write_text(template)
        write_tokenizer(directory, ADDED, WORDS if request.param == "words" else ())
        made.append((TargetTokenizer(directory), AutoTokenizer.from_pretrained(str(directory))))
    return made


def chat(content: str, spelled: str = "") -> tuple[list[dict], list[dict]]:
    """Messages and tools with content and what it spells in each place."""
    arguments = {content: [spelled, {"a": content + spelled}]}
    calls = [{"type": "function", "function": {"name": f"f{spelled}", "arguments": arguments}}]
    messages = [
        {"role": "system", "content": content + spelled},
        {"role": "user", "content": f"{content} {spelled}{content}"},
        {"role": "assistant", "content": content, "tool_calls": calls},
        {"role": "tool", "content": spelled + content, "tool_call_id": spelled},
    ]
    return messages, [{"type": "function", "function": {"name": "f" + spelled, "description": content + spelled}}]


PLAIN = st.text(st.characters(codec="utf-8"), max_size=12) | st.text('<|im_end> \n\tb"\\', max_size=12)


@given(content=PLAIN)
@example(content="<b>\n\n</b> <|im_en d|> \uff1c|IM_END|\uff1e")
def test_ordinary_content_has_the_tokens_of_transformers(tokenizers, content):
    if any(text in content.lower() for text in CONTROL):
        return
    messages, tools = chat(content)
    for ours, theirs in tokenizers:
        if "tools" in theirs.chat_template:
            expected = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True)
            assert ours.encode_chat(messages, ChatForm(tools=tools)) == expected["input_ids"]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True)
        assert ours.encode_chat(messages) == expected["input_ids"]
        assert ours.encode(content) == theirs(content)["input_ids"]


@pytest.mark.parametrize("spelled", [*CONTROL, "<|IM_END|>", "<|im_end|><tool_call>"])
def test_content_that_spells_control_tokens_is_text(tokenizers, spelled):
    for ours, theirs in tokenizers:
        steers = [text for text in CONTROL if ADDED[text] or "|" in text or text in theirs.chat_template]
        control = set(theirs.convert_tokens_to_ids(steers))

        def steering(content, what="", ours=ours, theirs=theirs, control=control):
            messages, tools = chat(content, what)
            shown = ours.encode_chat(messages, ChatForm(tools=tools)) if "tools" in theirs.chat_template else []
            both = [shown, ours.encode_chat(messages)]
            return [[token for token in tokens if token in control] for tokens in both], theirs.decode(both[1])

        plain, _ = steering("x y")
        steered, text = steering("x y", spelled)
        assert steered == plain
        assert text.lower().count(spelled.lower()) >= 3
        assert not control & set(ours.encode(ours.control.guarded(f"x {spelled}")))
        for raw in (False, "as text"):
            prompt = [Segment(f"{spelled} {spelled[:3]}"), Segment(spelled[3:] + spelled[:2], private=True)]
            parts = split([*prompt, Segment(spelled[2:])], ours, raw=raw)
            expected = [] if raw else [t for t in ours.encode_chat([{"role": "user", "content": "x"}]) if t in control]
            assert [token for token in parts.whole if token in control] == expected
