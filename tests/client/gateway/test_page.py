"""The page in a real Chromium, with a real gateway and a real server: answers, outage, private text, Markdown, axe."""

from __future__ import annotations

import re

import pytest
from visitor import BROWSER, DESK, QUESTION, SMALL_PHONE, html

from ...marks import slow

pytestmark = BROWSER


def test_an_answer_is_the_targets_and_is_kept(behind_link, visitor, page, plain):
    visitor.ask(QUESTION, answers=1)
    assert visitor.written == plain(QUESTION, 256)[1]
    assert visitor.origins == {"accepted", "bonus"}
    assert all(request.url.startswith(behind_link.url) for request in visitor.requests)
    shown = visitor.answer.inner_text()
    page.click(".turn summary")
    assert page.locator(".turn details td").first.inner_text().isdecimal()
    visitor.reopen()
    assert visitor.answer.inner_text() == shown
    page.click("#forget-all")
    page.reload()
    page.click("#open-history")
    assert page.locator("#conversations li").count() == 0


def test_a_cut_and_restored_link_is_shown(visitor, page, plain):
    """Words written offline are ghosts, a banner tells of the outage; the final text is the target's."""
    assert page.is_hidden("#banner")
    visitor.begin(QUESTION)
    visitor.change_link()
    page.wait_for_selector(".turn.assistant [data-origin=unverified]")
    page.wait_for_selector("#link-pill[data-state=offline]")
    page.wait_for_selector("#banner-restore")
    assert page.get_attribute("#cut", "aria-pressed") == "true"
    assert page.inner_text("#link-word") == "Offline"
    assert page.inner_text("#link-rtt") == ""
    assert "your device writes alone" in page.inner_text("#banner")
    page.click("#banner-restore")
    visitor.wait_for_answers(1)
    assert visitor.written == plain(QUESTION, 256)[1]
    assert "unverified" not in visitor.origins
    assert " s offline" in page.inner_text(".chip")
    page.wait_for_selector("#link-pill[data-state=online]")
    assert page.is_hidden("#banner")
    assert page.inner_text("#link-rtt").endswith(" ms")
    kept = visitor.kept()[0]["turns"][-1]
    told = page.inner_text(".chip")
    visitor.reopen()
    assert page.inner_text(".chip") == told
    assert page.locator("del").count() == len(kept["taken"])
    assert all(page.locator("del").nth(index).is_hidden() for index in range(len(kept["taken"])))


def test_private_text_is_marked_and_stays(visitor, page):
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
    visitor.ask("And again?", answers=2)
    assert page.inner_text("#leaves") == ""
    history = visitor.bodies()[1]["messages"]
    assert history[1]["role"] == "assistant"
    assert all(part["private"] for part in history[1]["content"])  # it may repeat what it was written from


MARKDOWN = {
    "plain\nlines": "<p>plain\nlines</p>",
    "# One\n\n### Three\ntext": "<h3>One</h3><h4>Three</h4><p>text</p>",
    "**bold** *it* _it_ `co*d*e` ***both***": (
        "<p><strong>bold</strong> <em>it</em> <em>it</em> <code>co*d*e</code> <strong><em>both</em></strong></p>"
    ),
    "2 * 3 * 4, snake_case_name, \\*": "<p>2 * 3 * 4, snake_case_name, *</p>",
    "- a\n- b\n  - c\n\nend": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul><p>end</p>",
    "3. a\n\n4. b\n   ```\n   x\n   ```": (
        '<ol start="3"><li><p>a</p></li><li><p>b</p><div><pre><code>x</code></pre></div></li></ol>'
    ),
    "> q\n> > r": "<blockquote><p>q</p><blockquote><p>r</p></blockquote></blockquote>",
    "a\n\n---\nb": "<p>a</p><hr><p>b</p>",
    "```py\n  <b>\n\n# no\n```\nz": "<div><pre><code>  &lt;b&gt;\n\n# no</code></pre></div><p>z</p>",
    "| a | b |\n|--|:-:|\n| 1 | `2` |": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td><code>2</code></td></tr></tbody></table></div>"
    ),
    "[a](https://b.c/d) <mailto:a@b.c> https://e.f/g_(h).": (
        '<p><a href="https://b.c/d">a</a> <a href="mailto:a@b.c">mailto:a@b.c</a>'
        ' <a href="https://e.f/g_(h)">https://e.f/g_(h)</a>.</p>'
    ),
    # hostile
    "<img src=x onerror=alert(1)><script>alert(1)</script>": (
        "<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    ),
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) [d](JaVaScRiPt:x)": (
        "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) [d](JaVaScRiPt:x)</p>"
    ),
    "![pixel](https://evil.example/p.png)": '<p><a href="https://evil.example/p.png">pixel</a></p>',
    '```"><img src=x>\nx\n```': "<div><pre><code>x</code></pre></div>",
    "**unclosed `and [open](": "<p>**unclosed `and [open](</p>",
}


def test_markdown_becomes_elements_and_html_stays_text(behind_link, visitor):
    assert {text: html(visitor, text) for text in MARKDOWN} == MARKDOWN
    assert {request.url.removeprefix(behind_link.url)[0] for request in visitor.requests} == {"/"}


def set_up(visitor, scene: str) -> None:
    page = visitor.page
    if scene != "empty":
        visitor.draw([("Try *this*:\n\n```py\nx = 1\n```\n\n| a |\n|-|\n| https://b.c |\n\n", {"origin": "accepted"})])
        visitor.draw([("1. drafted ", {"origin": "accepted"}), ("and not checked", {"origin": "unverified"})])
        visitor.draw([("a ", {"origin": "bonus"}), ("b c", {"origin": "unverified"}), ("", {"rollback_to": 2})])
        page.evaluate("document.getElementById('greeting').hidden = true")
    match scene:
        case "asked":
            visitor.ask("Who am <<private: I>>?")
            page.locator(".turn summary").wait_for()
            page.click(".turn summary")
            page.click("#open-history")
        case "origins":
            page.click("#who-wrote")
            page.hover(".assistant [data-origin]")
        case "offline":
            visitor.change_link()
            page.wait_for_selector("#banner:not([hidden])")
        case "drawer":
            page.click("#open-panel")
        case "link":
            page.click("#link-pill")
        case "key":
            page.evaluate("document.getElementById('key-dialog').showModal()")


@pytest.fixture
def online(behind_link):
    yield behind_link
    behind_link.order(cut=False)
    behind_link.wait_for_link("online")


@pytest.mark.parametrize("size", [DESK, *slow(SMALL_PHONE)], ids=["desk", "small"])
@pytest.mark.parametrize("scene", ["asked", "offline", *slow("empty", "origins", "drawer", "link", "key")])
def test_no_accessibility_finding(online, visit, size, scene):
    """axe-core finds nothing at all, in light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    visitor = visit(online, viewport=size, reduced_motion="reduce")
    set_up(visitor, scene)
    for scheme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=scheme)
        findings = Axe().run(visitor.page).response["violations"]
        assert [f"{each['id']} ({each['impact']}): {each['nodes'][0]['html']}" for each in findings] == [], scheme
    assert not visitor.sticks_out
    assert not re.search(r"undefined|NaN|null", visitor.page.inner_text("body"))
