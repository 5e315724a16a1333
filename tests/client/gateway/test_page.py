"""The page in a real Chromium, with a real gateway and a real server.

Set OUTRIDER_SCREENSHOTS to a folder to renew the pictures of docs/.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from outrider_client.connection.policy import Patience
from outrider_client.gateway.gateway import GatewayConfig
from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUESTION = (
    "Write a function build_total(names). Given a list of words, it should keep words ending with 'e', then keep words"
    " with the letter 'r', then keep words with more than 9 letters, then return one text with spaces between."
)  # the embedded pair knows the like of it
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 860}
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def behind_link(start_gateway, server):
    """A gateway whose link can be cut."""
    with start_gateway(server, profile="paper-4g", patience=Patience(floor_s=0.5), opening=False) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visitor:
    """A page in its own browser, with its requests and its errors."""

    def __init__(self, context, url: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.requests = []
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.add_init_script("delete Crypto.prototype.randomUUID")  # missing where an address is not localhost
        self.page.goto(url)
        self.page.wait_for_selector("#link-state[data-state=online]")

    def ask(self, text: str, *, mode: str = "stop-and-wait") -> None:
        if self.page.is_hidden("#mode"):  # on a phone
            self.page.click("#open-panel")
        self.page.select_option("#mode", mode)
        if self.page.is_visible("#open-panel"):
            self.page.click("#open-panel")
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")

    def begin(self, text: str) -> None:
        """Ask, and wait for the first words of the answer."""
        self.ask(text)
        self.page.wait_for_selector(".turn.assistant [data-origin]")

    def wait_for_answers(self, count: int) -> None:
        details = self.page.locator(".turn details")  # wait_for_function would need eval, which the page forbids
        details.nth(count - 1).wait_for(state="attached")
        assert details.count() == count

    @property
    def answer(self):
        return self.page.locator(".turn.assistant").last.locator(".text")

    @property
    def origins(self) -> set[str]:
        return set(self.answer.locator("[data-origin]").evaluate_all("all => all.map(each => each.dataset.origin)"))

    def bodies(self) -> list[dict]:
        return [request.post_data_json for request in self.requests if request.url.endswith("/v1/chat/completions")]


@pytest.fixture
def visit(browser):
    contexts, visitors = [], []

    def open_page(gateway, **options) -> Visitor:
        contexts.append(browser.new_context(**({"viewport": DESK} | options)))
        visitors.append(Visitor(contexts[-1], gateway.url))
        return visitors[-1]

    yield open_page
    faults = [fault for visitor in visitors for fault in visitor.faults]
    for context in contexts:
        context.close()
    assert faults == []


def picture(page, name: str) -> None:
    if folder := os.environ.get("OUTRIDER_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_an_answer_comes_tinted_and_is_kept(behind_link, visit, plain):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask(QUESTION)
    visitor.wait_for_answers(1)
    expected = plain(QUESTION, 256)[1]
    assert visitor.answer.inner_text() == expected.strip()
    assert visitor.origins == {"accepted", "bonus"}
    colors = visitor.answer.locator("span").evaluate_all(
        "all => Object.fromEntries(all.map(each => [each.dataset.origin, getComputedStyle(each).backgroundColor]))"
    )
    assert colors["accepted"] != colors["bonus"]
    page.click(".turn summary")
    assert page.locator(".turn details td").first.inner_text().isdecimal()
    picture(page, "page")
    page.uncheck("#tint")
    assert len(set(visitor.answer.locator("span").evaluate_all(
        "all => all.map(each => getComputedStyle(each).backgroundColor)"))) == 1  # fmt: skip
    page.reload()
    page.click("#open-history")
    page.click("#conversations li button >> nth=0")
    assert visitor.answer.inner_text() == expected.strip()
    assert not page.is_checked("#tint")
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
    assert page.locator(".turn.assistant > .muted").all_inner_texts() == ["Stopped."]
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
    assert "Interrupted" in page.inner_text(".turn.assistant > .muted")
    visitor.ask("Go on.")
    visitor.wait_for_answers(1)
    assert [message["role"] for message in visitor.bodies()[-1]["messages"]] == ["user", "assistant", "user"]


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


def test_on_a_narrow_phone_the_message_stays_and_the_answer_is_followed(behind_link, visit):
    visitor = visit(behind_link, viewport={"width": 320, "height": 568})
    page = visitor.page
    for number in (1, 2, 3):
        visitor.ask(QUESTION)
        visitor.wait_for_answers(number)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.evaluate("document.documentElement.scrollHeight") <= 568
    send = page.locator("#send").bounding_box()
    assert send["y"] + send["height"] <= 568
    left = page.evaluate("(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))")
    assert left < 200  # the newest words are in sight, but for the figures below them
    page.click("#open-panel")
    assert page.is_visible("#cut")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


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
    page.check("#copy-tint")
    assert page.evaluate(copied)[0] is False  # the browser copies what it shows


def test_a_cut_and_restored_link_is_shown(behind_link, visit, plain):
    """Words written offline appear as unverified; the final text is the target's."""
    visitor = visit(behind_link)
    page = visitor.page
    visitor.begin(QUESTION)
    page.click("#cut")
    page.wait_for_selector(".turn.assistant [data-origin=unverified]")
    page.wait_for_selector("#link-state[data-state=offline]")
    assert page.get_attribute("#cut", "aria-pressed") == "true"
    assert page.inner_text("#cut") == "Restore the link"
    picture(page, "page-outage")
    page.click("#cut")
    visitor.wait_for_answers(1)
    assert visitor.answer.inner_text() == plain(QUESTION, 256)[1].strip()
    assert "unverified" not in visitor.origins
    page.wait_for_selector("#link-state[data-state=online]")


def test_a_correction_shows(behind_link, visit):
    """The page's AnswerText, fed with the chunks of an outage."""
    page = visit(behind_link).page
    spans = page.evaluate("""async () => {
        const { AnswerText } = await import("./answer.js");
        const answer = new AnswerText(document.createElement("div"));
        answer.take("one ", {origin: "accepted", offset: 0});
        answer.take("𝄞 ", {origin: "unverified", offset: 4});
        answer.take("two ", {origin: "unverified", offset: 6});
        answer.take("three", {origin: "unverified", offset: 10});
        answer.take("", {origin: "accepted", offset: 4, verified_to: 6});
        answer.take("", {origin: "corrected", offset: 8, rollback_to: 8});
        answer.take("en", {origin: "corrected", offset: 8});
        return answer.origins;
    }""")
    assert [(span["text"], span["origin"]) for span in spans] == [
        ("one ", "accepted"),
        ("𝄞 ", "accepted"),
        ("tw", "unverified"),
        ("en", "corrected"),
    ]


def test_private_text_is_marked_and_stays(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    page.fill("#message", "Greet Ann politely.")
    page.evaluate("document.getElementById('message').setSelectionRange(6, 9)")
    page.select_option("#kind", "PERSON")
    page.press("#message", "Alt+p")
    assert page.input_value("#message") == "Greet <<PERSON: Ann>> politely."
    assert page.inner_text("#leaves") == "The server sees: Greet … and nothing after it."
    page.select_option("#privacy", "placeholder")
    assert page.inner_text("#leaves") == "The server sees: Greet [PERSON] politely."
    page.select_option("#privacy", "local")
    picture(page, "page-private")
    page.press("#message", "Enter")
    visitor.wait_for_answers(1)
    assert visitor.origins == {"private"}
    assert "on this device alone" in page.inner_text(".turn.assistant > .muted")
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
    visitor.page.fill("#max-tokens", "3")
    visitor.ask("Who am I?")
    visitor.wait_for_answers(2)
    assert [body.get("max_tokens") for body in visitor.bodies()] == [None, 3]
    assert visitor.page.locator(".turn.assistant > .muted").all_inner_texts() == ["Stopped at the token limit."]


def test_a_marker_that_does_not_close_is_not_sent(behind_link, visit):
    visitor = visit(behind_link)
    visitor.page.fill("#message", "Greet <<private: Ann")
    visitor.page.press("#message", "Enter")
    assert "does not close" in visitor.page.inner_text("#problem")
    assert visitor.page.input_value("#message") == "Greet <<private: Ann"
    assert visitor.bodies() == []


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
    remarks = page.locator(".turn.assistant > .muted").all_inner_texts()
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
        page.wait_for_selector("#link-state[data-state=online]")
        assert page.locator("#emulation").is_hidden()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_serious_accessibility_finding(behind_link, visit, scheme, size):
    """axe-core finds nothing serious with an answer, private text, the history and the link's panel visible."""
    from axe_playwright_python.sync_playwright import Axe

    visitor = visit(behind_link, color_scheme=scheme, viewport=size)
    page = visitor.page
    visitor.ask("Who am <<private: I>>?")
    visitor.wait_for_answers(1)
    visitor.ask("Who am I?", mode="stream")
    visitor.wait_for_answers(2)
    page.click("#open-history")
    page.click(".turn summary >> nth=0")
    picture(page, f"page-{scheme}-{'phone' if size is PHONE else 'desk'}")
    findings = Axe().run(page).response["violations"]
    serious = [
        f"{each['id']}: {each['nodes'][0]['html']}" for each in findings if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"]  # nothing sticks out
    assert not re.search(r"undefined|NaN|null", page.inner_text("body"))
