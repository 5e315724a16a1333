"""Chat templates are programs that come with the model's files: they may refuse and fail, and stay in their box."""

from __future__ import annotations

import json
import shutil

import pytest

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
    with pytest.raises(UsageError, match="no chat template"):
        TargetTokenizer(changed(chat_template=None)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_templates_stay_in_their_box(changed, template):
    with pytest.raises(UsageError):
        TargetTokenizer(changed(chat_template=template)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ +['x'] }}", "{{ 1 // 0 }}", "{{ messages[0].content['a':] }}"])
def test_a_failing_template_is_reported(changed, template):
    with pytest.raises(UsageError, match="chat template"):
        TargetTokenizer(changed(chat_template=template)).render([{"role": "user", "content": "y"}])


@pytest.mark.parametrize("template", ["{{ " + "(" * 500 + "1 }}", "{{ " + "9" * 5000 + " }}", "{% if 1 %}" * 60])
def test_a_template_that_cannot_be_compiled_is_reported(changed, template):
    with pytest.raises(UsageError, match="chat template"):
        TargetTokenizer(changed(chat_template=template)).render([{"role": "user", "content": "y"}])
