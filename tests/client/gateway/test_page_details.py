"""The page in a real Chromium, in detail: conversations, ghosts, keys, small windows, private markers."""

from __future__ import annotations

import pytest
from visitor import BROWSER, QUESTION, WAIT_MS

from outrider_client.core.gateway_config import GatewayConfig

pytestmark = [*BROWSER, pytest.mark.slow]


def test_who_opens_another_conversation_mixes_nothing(visitor, page):
    visitor.begin(QUESTION)
    page.click("#open-history")
    page.click("#new-conversation")
    page.wait_for_selector("#stop", state="hidden")
    assert page.locator(".turn").count() == 0
    visitor.ask("Who am I?", answers=1)
    assert [body["messages"][0]["content"] for body in visitor.bodies()] == [QUESTION, "Who am I?"]
    assert [len(body["messages"]) for body in visitor.bodies()] == [1, 1]
    page.click("#conversations li button >> nth=2")
    assert page.locator(".turn.user .text").all_inner_texts() == [QUESTION]
    assert visitor.answer.inner_text()
    assert visitor.remarks == ["Stopped."]
    page.click("#conversations li button >> nth=0")
    assert page.locator(".turn.user .text").all_inner_texts() == ["Who am I?"]


def test_a_reload_in_mid_answer_loses_nothing(visitor, page):
    visitor.begin(QUESTION)
    written = visitor.answer.inner_text()
    visitor.reopen()
    assert page.locator(".turn.user .text").all_inner_texts() == [QUESTION]
    assert visitor.answer.inner_text().startswith(written)
    assert "Interrupted" in visitor.remarks[0]
    with page.expect_request("**/v1/chat/completions") as asked:  # the interrupted turn looks answered, too
        visitor.ask("Go on.")
    roles = [message["role"] for message in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_a_key_is_asked_for(start_gateway, server, browser):
    with start_gateway(server, GatewayConfig(api_key="sesame")) as closed:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(closed.url)
        page.fill("#key", "open")
        page.press("#key", "Enter")
        page.wait_for_selector("#key-problem:not(:empty)")
        assert "key" in page.inner_text("#key-problem")
        page.fill("#key", "sesame")
        page.press("#key", "Enter")
        page.wait_for_selector("#link-pill[data-state=online]")
        page.click("#link-pill")
        assert page.is_visible("#real-link")
        assert page.is_hidden("#emulation")
        page.close()


def spans(visitor) -> list[list[str]]:
    return visitor.answer.locator("[data-origin]").evaluate_all(
        "all => all.map(e => [e.textContent, e.dataset.origin])"
    )


def test_asking_again_in_vain_loses_nothing(visitor, page):
    visitor.ask("Who am I?", answers=1)
    written = visitor.answer.inner_text()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click(".again")
    page.wait_for_selector("#problem:not(:empty)")
    assert visitor.answer.inner_text() == written
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: None)  # held
    page.click(".again")
    page.click("#stop")
    visitor.wait_for_answers(1)
    assert visitor.answer.inner_text() == written
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    visitor.ask("And you?")
    page.wait_for_selector("#problem:not(:empty)")
    assert page.input_value("#message") == "And you?"
    assert page.locator(".turn").count() == 2
    page.unroute("**/v1/chat/completions")
    page.click(".again")
    page.wait_for_selector("#problem:empty", state="attached")
    visitor.wait_for_answers(1)
    assert visitor.answer.inner_text() == written


def test_a_word_of_two_origins_keeps_its_marks_and_links_lead_away_safely(visitor):
    chunks = [("an **ex", "accepted"), ("am", "bonus"), ("ple** `c` ", "accepted"), ("https://a.example/b", "bonus")]
    visitor.draw([(text, {"origin": origin}) for text, origin in chunks])
    assert visitor.answer.locator("strong").inner_text() == "example"
    assert [text for text, _ in spans(visitor)][:4] == ["an ", "ex", "am", "ple"]
    link = visitor.answer.locator("a")
    assert {"noopener", "noreferrer"} <= set(link.get_attribute("rel").split())
    assert link.get_attribute("target") == "_blank"


def test_code_is_sent_as_it_is_and_doubtful_markers_are_not(visitor):
    visitor.ask("Who am <<I>>?")
    assert "write <<private: ...>>" in visitor.page.inner_text("#problem")
    visitor.page.fill("#message", "Greet <<private: Ann")
    visitor.page.press("#message", "Enter")
    assert "does not close" in visitor.page.inner_text("#problem")
    assert visitor.page.input_value("#message") == "Greet <<private: Ann"
    assert visitor.bodies() == []
    visitor.page.press("#message", "!")
    assert visitor.page.inner_text("#problem") == ""
    code = "what is (1 << 4) and 256 >> 2 ?"
    visitor.ask(code, answers=1)
    assert "private" not in visitor.origins
    assert visitor.bodies()[0]["messages"] == [{"role": "user", "content": code}]
