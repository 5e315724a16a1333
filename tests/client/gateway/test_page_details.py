"""The page in a real Chromium, in detail: conversations, origins of words, settings, keys, look, small windows."""

from __future__ import annotations

import re

import pytest
from visitor import BROWSER, DESK, QUESTION, SMALL_PHONE, WAIT_MS

from outrider_client.connection.policy import Patience
from outrider_client.gateway.gateway import GatewayConfig

pytestmark = [*BROWSER, pytest.mark.slow]


def color(locator, name: str = "color") -> str:
    return locator.evaluate("(element, name) => getComputedStyle(element)[name]", name)


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


def test_a_conversation_that_is_forgotten_while_it_is_answered_stays_so(visitor, page):
    visitor.begin(QUESTION)
    page.click("#open-history")
    page.click("#conversations li button[aria-label^=Forget]")
    page.wait_for_selector("#stop", state="hidden")
    page.reload()
    page.click("#open-history")
    assert page.locator("#conversations li").count() == 0


def test_a_page_out_of_sight_asks_nothing(visitor, page):
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/outrider/link")):
        page.evaluate(hide, True)
    asked = len(visitor.requests)
    page.wait_for_timeout(2500)
    assert len(visitor.requests) == asked
    with page.expect_request("**/outrider/link"):
        page.evaluate(hide, False)


def test_a_cut_answer_says_so_and_none_is_cut_unasked(visitor):
    visitor.ask("Who am I?", answers=1)
    visitor.set(max_tokens="3")
    visitor.ask("Who am I?", answers=2)
    assert [body.get("max_tokens") for body in visitor.bodies()] == [None, 3]
    assert visitor.remarks == ["Stopped at the token limit."]


def test_keys_alone_are_enough(visitor, page):
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the link that skips to the message
    page.wait_for_url("**#message")
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.id") != "message":
        page.keyboard.press("Shift+Tab")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn.assistant [data-origin]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#stop", state="hidden")
    remarks = visitor.remarks
    assert remarks in (["Stopped."], [])  # none where the answer was quicker than the key


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


UNVERIFIED = {"origin": "unverified"}


OUTAGE = [
    ("one ", {"origin": "accepted", "offset": 0}),
    ("𝄞 ", UNVERIFIED | {"offset": 4}),
    ("tw", UNVERIFIED | {"offset": 6}),
    ("o three", UNVERIFIED | {"offset": 8}),
]


BACK = [
    ("", {"origin": "accepted", "offset": 4, "verified_to": 8}),
    ("", {"origin": "corrected", "offset": 8, "rollback_to": 8}),
    ("elve", {"origin": "corrected", "offset": 8}),
    (" men", {"origin": "bonus", "offset": 12}),
]


def spans(visitor) -> list[list[str]]:
    return visitor.answer.locator("[data-origin]").evaluate_all(
        "all => all.map(e => [e.textContent, e.dataset.origin])"
    )


def test_unverified_text_is_a_ghost_until_it_is_confirmed_or_taken_back(visitor):
    visitor.page.emulate_media(reduced_motion="reduce")
    visitor.draw(OUTAGE, is_open=True)
    assert spans(visitor) == [["one ", "accepted"], ["𝄞 two three", "unverified"]]  # one span, whatever the tokens
    ghost = visitor.answer.locator("[data-origin=unverified]")
    assert color(ghost) != color(visitor.answer)
    assert "underline" in color(ghost, "textDecorationLine")
    visitor.draw([*OUTAGE, *BACK])
    assert spans(visitor)[:2] == [["one ", "accepted"], ["𝄞 tw", "accepted"]]  # the second one has just settled
    assert [origin for _, origin in spans(visitor)[2:]] == ["corrected", "bonus"]
    for settled in visitor.answer.locator("[data-origin]").all():
        assert color(settled) == color(visitor.answer)
        assert color(settled, "backgroundColor") == "rgba(0, 0, 0, 0)"
    gone = visitor.answer.locator("del")
    assert gone.inner_text() == "o three"
    assert "line-through" in color(gone, "textDecorationLine")


def test_a_chip_tells_what_became_of_the_words_of_an_outage(visitor, page):
    page.clock.install()
    visitor.draw([*OUTAGE, *BACK])
    assert page.is_visible("del")
    chip = page.locator("button.chip")
    assert chip.inner_text() == "2 words rewritten, 2 confirmed"
    page.clock.fast_forward(8000)
    assert page.is_hidden("del")
    chip.click()
    assert page.is_visible("del")
    chip.click()
    assert page.is_hidden("del")
    visitor.draw(
        [("all ", {"origin": "bonus"}), ("of it", UNVERIFIED | {"offset": 4}), ("", {"offset": 4, "verified_to": 9})]
    )
    visitor.draw([("a ", {"origin": "bonus"}), ("b", UNVERIFIED)])
    assert page.locator("p.chip").all_inner_texts() == ["2 words confirmed", "1 word not checked"]
    visitor.draw([("settled", {"origin": "bonus"})])
    assert page.locator(".chip").count() == 3


def test_much_that_was_taken_back_is_shortened_until_asked_for(visitor):
    words = " ".join(f"w{number}" for number in range(40))
    visitor.draw([(words, UNVERIFIED | {"offset": 0}), ("", {"rollback_to": 0}), ("new", {"origin": "corrected"})])
    taken = visitor.page.locator("del")
    assert taken.inner_text() == " ".join([*words.split()[:24], "…"])
    visitor.page.click(".chip")
    assert taken.inner_text() == words


def test_an_unverified_answer_can_be_asked_for_again(start_gateway, server, visit, plain):
    patience = Patience(floor_s=0.5)
    with start_gateway(server, profile="paper-4g", patience=patience, opening=False, wait_for_link_s=0.2) as running:
        visitor = visit(running)
        page = visitor.page
        visitor.begin(QUESTION)
        visitor.change_link()
        visitor.wait_for_answers(1)
        assert "words not checked" in page.inner_text(".chip")
        assert "unverified" in visitor.remarks[0]
        assert page.inner_text(".again") == "Ask again"
        page.click("#banner-restore")
        again = page.get_by_role("button", name="Ask again now that the link is back")
        again.wait_for()
        again.click()
        visitor.wait_for_answers(1)
        assert visitor.written == plain(QUESTION, 256)[1]
        assert page.inner_text(".again") == "Ask again"
        assert [turn["role"] for turn in visitor.kept()[0]["turns"]] == ["user", "assistant"]
        assert [len(body["messages"]) for body in visitor.bodies()] == [1, 1]


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


def test_who_wrote_what_is_told_on_demand(visitor, page):
    visitor.ask(QUESTION, answers=1)
    drafted = visitor.answer.locator("[data-origin=accepted]").first
    drafted.hover()
    assert page.is_hidden("#tip")
    assert visitor.answer.get_attribute("tabindex") is None
    page.click("#who-wrote")
    assert page.get_attribute("#who-wrote", "aria-pressed") == "true"
    assert page.is_visible("#legend")
    written = visitor.answer.locator("[data-origin=bonus]").first
    assert color(drafted, "backgroundColor") != color(written, "backgroundColor")
    origins = [origin for _, origin in spans(visitor)]
    drafted.hover()
    assert page.inner_text("#tip") == "Drafted on this device, confirmed by the server"
    page.hover("#message")
    assert page.is_hidden("#tip")
    visitor.answer.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    chosen = page.locator(".chosen")
    assert chosen.get_attribute("data-origin") == origins[1]
    assert chosen.inner_text().strip() in page.inner_text("#tip-spoken")
    assert page.is_visible("#tip")
    page.reload()
    assert page.get_attribute("#who-wrote", "aria-pressed") == "true"


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_code_and_answers_are_copied(behind_link, visit, has_clipboard):
    visitor = visit(behind_link, permissions=["clipboard-read", "clipboard-write"])
    page = visitor.page
    text = "Do **this**:\n\n```py\nif x:\n    y()\n```\n"
    visitor.draw([(text, {"origin": "bonus"}), ("no", UNVERIFIED), ("", {"rollback_to": len(text)})])
    if not has_clipboard:  # as where an address is neither localhost nor behind TLS
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('none')); }")
    page.click(".code button")
    page.wait_for_selector(".code button:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == "if x:\n    y()"
    page.click(".turn .actions button >> nth=0")
    page.wait_for_selector(".turn .actions button:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == text
    assert "mono" in color(visitor.answer.locator("pre code"), "fontFamily").lower()


LONG = "\n\n".join(f"Paragraph {number}." for number in range(80))


def gap(page) -> int:
    """Pixels between what is in sight and the newest words."""
    return page.evaluate("(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))")


def test_an_empty_page_greets(visitor, page, server):
    page.get_by_text(re.compile(r"\d+ ms away")).wait_for()
    greeting = page.inner_text("#greeting")
    assert greeting.startswith(f"Ask {page.inner_text('#model-name')}")
    assert f"It runs on {server}, " in greeting
    assert "moa" in greeting
    assert "<<private: like this>>" in greeting
    assert page.locator("#examples button").count() == 3
    page.click("#examples button >> nth=2")
    assert page.inner_text("#leaves").startswith("The server sees: ")
    assert visitor.bodies() == []
    page.fill("#message", "")
    page.click("#examples button >> nth=0")
    assert page.is_hidden("#greeting")
    visitor.wait_for_answers(1)
    page.click("#begin-anew")
    assert page.is_visible("#greeting")


def test_a_sign_of_life_comes_before_the_first_word(visitor, page):
    seen = []

    def look(route) -> None:
        seen.append((page.is_visible(".waiting"), page.is_visible("#stop"), page.is_visible("#send")))
        route.continue_()

    page.route("**/v1/chat/completions", look)
    visitor.ask("Who am I?", answers=1)
    assert seen == [(True, True, False)]
    assert page.locator(".waiting").count() == 0
    assert page.is_visible("#send")


@pytest.mark.parametrize("size", [DESK, SMALL_PHONE], ids=["desk", "small"])
def test_the_message_stays_and_the_answer_is_followed(behind_link, visit, size):
    visitor = visit(behind_link, viewport=size)
    page = visitor.page
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    visitor.ask(QUESTION)
    page.wait_for_selector(".turn .actions")
    assert not visitor.sticks_out
    assert page.evaluate("document.documentElement.scrollHeight") <= size["height"]
    send = page.locator("#send").bounding_box()
    assert send["y"] + send["height"] <= size["height"]
    assert gap(page) < 8
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    assert gap(page) < 8
    page.evaluate("document.getElementById('log').scrollTop -= 300")
    page.wait_for_selector("#to-newest")
    before = page.evaluate("document.getElementById('log').scrollTop")
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    assert page.evaluate("document.getElementById('log').scrollTop") == before
    page.click("#to-newest")
    assert gap(page) < 8
    assert page.is_hidden("#to-newest")


def test_wide_code_scrolls_by_itself(behind_link, visit):
    visitor = visit(behind_link, viewport=SMALL_PHONE)
    visitor.draw([(f"```\n{'wide ' * 60}\n```\n\n{'x' * 300} `{'y' * 300}`\n\n|a|b|\n|-|-|\n|{'z' * 90}|c|", {})])
    assert not visitor.sticks_out
    assert visitor.answer.locator("pre").evaluate("pre => pre.scrollWidth > pre.clientWidth")


def test_the_pill_tells_the_link_and_changes_it(behind_link, page):
    page.get_by_text(re.compile(r"^\d+ ms$")).first.wait_for()
    assert page.is_hidden("#link-card")
    page.click("#link-pill")
    assert page.inner_text("#link-meaning") == "The server checks the words as they come."
    assert page.input_value("#profile") == "paper-4g"
    page.select_option("#profile", "wifi")
    assert next(report for report in behind_link.link_states() if report["emulated"]["profile"] == "wifi")
    page.select_option("#profile", "paper-4g")
    page.keyboard.press("Escape")
    assert page.is_hidden("#link-card")


def test_figures_have_plain_names_units_and_axes(visitor, page):
    visitor.ask(QUESTION, answers=1)
    assert page.is_hidden("#panel")
    page.click("#open-panel")
    assert page.get_attribute("#open-panel", "aria-expanded") == "true"
    page.locator(".chart b:text('tokens/s')").wait_for()
    captions = page.locator(".chart figcaption").all_inner_texts()
    assert [caption.splitlines()[0] for caption in captions] == [
        "Round trip",
        "Speed",
        "Tokens a reply of the server",
        "Traffic",
    ]
    axes = page.locator(".chart .axis").all_inner_texts()
    assert re.fullmatch(r"\d+ ms\n0", axes[0])
    assert re.fullmatch(r"\d+ tokens/s\n0", axes[1])
    assert page.locator(".chart .times").first.inner_text().split("\n") == ["2 min ago", "now"]
    page.keyboard.press("Escape")
    assert page.is_hidden("#panel")
    assert page.evaluate("document.activeElement.id") == "open-panel"


def test_on_a_phone_a_drawer_covers_the_conversation(behind_link, visit):
    visitor = visit(behind_link, viewport=SMALL_PHONE)
    page = visitor.page
    page.click("#open-history")
    assert page.evaluate("document.getElementById('chat').inert")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('chat').inert")
    visitor.ask("Who am I?", answers=1)
    page.click("#open-history")
    page.click("#new-conversation")
    assert page.is_hidden("#history")
    assert not visitor.sticks_out


def test_a_word_of_two_origins_keeps_its_marks_and_links_lead_away_safely(visitor):
    chunks = [("an **ex", "accepted"), ("am", "bonus"), ("ple** `c` ", "accepted"), ("https://a.example/b", "bonus")]
    visitor.draw([(text, {"origin": origin}) for text, origin in chunks])
    assert visitor.answer.locator("strong").inner_text() == "example"
    assert [text for text, _ in spans(visitor)][:4] == ["an ", "ex", "am", "ple"]
    link = visitor.answer.locator("a")
    assert {"noopener", "noreferrer"} <= set(link.get_attribute("rel").split())
    assert link.get_attribute("target") == "_blank"


def test_copied_text_is_plain_by_default_without_what_was_taken_back(visitor, page):
    visitor.draw([*OUTAGE, *BACK])
    copied = """select => {
        getSelection().selectAllChildren(document.querySelector(".turn.assistant .text"));
        const event = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true, cancelable: true});
        const prevented = !document.dispatchEvent(event);
        return [prevented, event.clipboardData.getData("text/plain"), event.clipboardData.getData("text/html")];
    }"""
    assert page.evaluate(copied) == [True, "one 𝄞 twelve men", ""]
    page.click("#open-panel")
    page.check("#copy-tint")
    assert page.evaluate(copied)[0] is False  # the browser copies what it shows


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
