"""The page in a real Chromium, with a real gateway and a real server: conversations, private text, settings, keys."""

from __future__ import annotations

from visitor import BROWSER, QUESTION, WAIT_MS

from outrider_client.gateway.gateway import GatewayConfig
from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError

pytestmark = BROWSER


def test_an_answer_is_the_targets_and_is_kept(behind_link, visit, plain):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask(QUESTION)
    visitor.wait_for_answers(1)
    assert visitor.written == plain(QUESTION, 256)[1]
    assert visitor.origins == {"accepted", "bonus"}
    shown = visitor.answer.inner_text()
    page.click(".turn summary")
    assert page.locator(".turn details td").first.inner_text().isdecimal()
    page.reload()
    page.click("#open-history")
    page.click("#conversations li button >> nth=0")
    assert visitor.answer.inner_text() == shown
    page.click("#forget-all")
    page.reload()
    page.click("#open-history")
    assert page.locator("#conversations li").count() == 0


def test_who_opens_another_conversation_mixes_nothing(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.begin(QUESTION)
    page.click("#open-history")
    page.click("#new-conversation")
    page.wait_for_selector("#stop", state="hidden")
    assert page.locator(".turn").count() == 0
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    assert [body["messages"][0]["content"] for body in visitor.bodies()] == [QUESTION, "Who am I?"]
    assert [len(body["messages"]) for body in visitor.bodies()] == [1, 1]
    page.click("#conversations li button >> nth=2")
    assert page.locator(".turn.user .text").all_inner_texts() == [QUESTION]
    assert visitor.answer.inner_text()
    assert visitor.remarks == ["Stopped."]
    page.click("#conversations li button >> nth=0")
    assert page.locator(".turn.user .text").all_inner_texts() == ["Who am I?"]


def test_a_reload_in_mid_answer_loses_nothing(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.begin(QUESTION)
    written = visitor.answer.inner_text()
    page.reload()
    page.click("#open-history")
    page.click("#conversations li button >> nth=0")
    assert page.locator(".turn.user .text").all_inner_texts() == [QUESTION]
    assert visitor.answer.inner_text().startswith(written)
    assert "Interrupted" in visitor.remarks[0]
    with page.expect_request("**/v1/chat/completions") as asked:  # the interrupted turn looks answered, too
        visitor.ask("Go on.")
    roles = [message["role"] for message in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_a_conversation_that_is_forgotten_while_it_is_answered_stays_so(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.begin(QUESTION)
    page.click("#open-history")
    page.click("#conversations li button[aria-label^=Forget]")
    page.wait_for_selector("#stop", state="hidden")
    page.reload()
    page.click("#open-history")
    assert page.locator("#conversations li").count() == 0


def test_a_page_out_of_sight_asks_nothing(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
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


def test_the_page_calls_only_the_gateway(behind_link, visit):
    visitor = visit(behind_link)
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    assert {request.url.removeprefix(behind_link.url)[0] for request in visitor.requests} == {"/"}
    assert all(request.url.startswith(behind_link.url) for request in visitor.requests)


def test_copied_text_is_plain_by_default(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    copied = """select => {
        getSelection().selectAllChildren(document.querySelector(".turn.assistant .text"));
        const event = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true, cancelable: true});
        const prevented = !document.dispatchEvent(event);
        return [prevented, event.clipboardData.getData("text/plain"), event.clipboardData.getData("text/html")];
    }"""
    assert page.evaluate(copied) == [True, visitor.answer.inner_text(), ""]
    page.click("#open-panel")
    page.check("#copy-tint")
    assert page.evaluate(copied)[0] is False  # the browser copies what it shows


def test_private_text_is_marked_and_stays(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    page.fill("#message", "Greet Ann politely.")
    page.evaluate("document.getElementById('message').setSelectionRange(6, 9)")
    page.select_option("#kind", "PERSON")
    page.press("#message", "Alt+p")
    assert page.input_value("#message") == "Greet <<PERSON: Ann>> politely."
    assert page.inner_text("#leaves") == "The server sees: Greet … and nothing after it."
    page.click("#other-privacy")
    assert page.inner_text("#leaves") == "The server sees: Greet [PERSON] politely."
    assert page.input_value("#privacy") == "placeholder"
    page.click("#other-privacy")
    assert page.inner_text("#leaves") == "The server sees: Greet … and nothing after it."
    page.press("#message", "Control+z")
    assert page.input_value("#message") == "Greet Ann politely."
    assert page.is_hidden("#other-privacy")
    page.press("#message", "Control+Shift+z")
    page.press("#message", "Enter")
    visitor.wait_for_answers(1)
    assert visitor.origins == {"private"}
    assert "on this device alone" in visitor.remarks[0]
    [body] = visitor.bodies()
    assert body["outrider"]["privacy"] == "local"
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Greet ", "private": False},
        {"type": "text", "text": "Ann", "private": True, "kind": "PERSON"},
        {"type": "text", "text": " politely.", "private": False},
    ]
    page.fill("#message", "And again?")
    assert page.inner_text("#leaves") == "The server sees: nothing of this message"
    visitor.ask("And again?")
    visitor.wait_for_answers(2)
    assert page.inner_text("#leaves") == ""
    history = visitor.bodies()[1]["messages"]
    assert history[1]["role"] == "assistant"
    assert all(part["private"] for part in history[1]["content"])  # it may repeat what it was written from


def test_a_cut_answer_says_so_and_none_is_cut_unasked(behind_link, visit):
    visitor = visit(behind_link)
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    visitor.set(max_tokens="3")
    visitor.ask("Who am I?")
    visitor.wait_for_answers(2)
    assert [body.get("max_tokens") for body in visitor.bodies()] == [None, 3]
    assert visitor.remarks == ["Stopped at the token limit."]


def test_a_marker_that_does_not_close_is_not_sent(behind_link, visit):
    visitor = visit(behind_link)
    visitor.page.fill("#message", "Greet <<private: Ann")
    visitor.page.press("#message", "Enter")
    assert "does not close" in visitor.page.inner_text("#problem")
    assert visitor.page.input_value("#message") == "Greet <<private: Ann"
    assert visitor.bodies() == []
    visitor.page.press("#message", "!")
    assert visitor.page.inner_text("#problem") == ""


def test_code_is_sent_as_it_is_and_unlabelled_markers_are_not(behind_link, visit):
    visitor = visit(behind_link)
    visitor.ask("Who am <<I>>?")
    assert "write <<private: ...>>" in visitor.page.inner_text("#problem")
    assert visitor.bodies() == []
    code = "what is (1 << 4) and 256 >> 2 ?"
    visitor.ask(code)
    visitor.wait_for_answers(1)
    assert "private" not in visitor.origins
    assert visitor.bodies()[0]["messages"] == [{"role": "user", "content": code}]


FENCED = [
    "plain",
    "",
    "a <<b>> c",
    "a <<private: b>> c",
    "<<EMAIL: a@b.c>>",
    "<<email: a@b.c>>",
    "<<A_1:  x  >>y<< z >>",
    "a \\<< b >> c \\<<private: d>>",
    "a > b < c >> d",
    "<<private: a\nb>>",
    "<<private: a",
    "<<private: a <<NAME: b>>",
    "<<>>",
    "<<private: >>",
    "é <<private: 𝄞>> x",
    "<<NAME:>>",
    "<< private: a >>",
    "<<private: a \\<< b>>",
    "cout << x << y; (1 << 4) and 256 >> 2; 1<<4>>2",
    "`<<a>>` and ``b ` <<c>>`` <<NAME: d>>",
    "`<<private: a>>`",
    "x\n```py\n<<a>>\n```\n<<NAME: b>>\n~~~\n<<c>>",
    "```\n<<NAME: a>>\n```",
    "don`t <<NAME: a>>",
]


def test_the_page_reads_markers_as_the_library_does(behind_link, visit):
    page = visit(behind_link).page
    read = page.evaluate(
        """async (texts) => {
        const { parseFences } = await import("./fences.js");
        return texts.map((text) => { try { return parseFences(text); } catch { return null; } });
    }""",
        FENCED,
    )
    for text, parts in zip(FENCED, read, strict=True):
        try:
            expected = [(each.text, each.private, each.kind) for each in parse_fences(text)]
        except UsageError:
            expected = None
        got = None if parts is None else [(part["text"], part["private"], part.get("kind")) for part in parts]
        assert got == expected, text


def test_keys_alone_are_enough(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
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
