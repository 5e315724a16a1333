"""Answers on the page: what is settled and what is not, outages, who wrote what, Markdown, copying."""

from __future__ import annotations

import pytest
from visitor import BROWSER, QUESTION

from outrider_client.connection.policy import Patience

pytestmark = BROWSER

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


def color(locator, name: str = "color") -> str:
    return locator.evaluate("(element, name) => getComputedStyle(element)[name]", name)


def html(visitor, text: str, *, is_open: bool = False) -> str:
    """The answer's elements without what tells origins."""
    visitor.page.evaluate("document.getElementById('turns').replaceChildren()")
    visitor.draw([(text, {"origin": "bonus"})], is_open=is_open)
    return visitor.answer.evaluate("""text => {
        const copy = text.cloneNode(true);
        copy.querySelectorAll(".bar").forEach((bar) => bar.remove());
        copy.querySelectorAll("[data-origin]").forEach((span) => span.replaceWith(...span.childNodes));
        const others = (element) => element.getAttributeNames().filter((name) => name !== "href" && name !== "start");
        copy.querySelectorAll("*").forEach((each) => others(each).forEach((name) => each.removeAttribute(name)));
        return copy.innerHTML;
    }""")


def test_unverified_text_is_a_ghost_until_it_is_confirmed_or_taken_back(behind_link, visit):
    visitor = visit(behind_link)
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


def test_a_chip_tells_what_became_of_the_words_of_an_outage(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
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


def test_much_that_was_taken_back_is_shortened_until_asked_for(behind_link, visit):
    visitor = visit(behind_link)
    words = " ".join(f"w{number}" for number in range(40))
    visitor.draw([(words, UNVERIFIED | {"offset": 0}), ("", {"rollback_to": 0}), ("new", {"origin": "corrected"})])
    taken = visitor.page.locator("del")
    assert taken.inner_text() == " ".join([*words.split()[:24], "…"])
    visitor.page.click(".chip")
    assert taken.inner_text() == words


def test_a_cut_and_restored_link_is_shown(behind_link, visit, plain):
    """Words written offline are ghosts, a banner tells of the outage; the final text is the target's."""
    visitor = visit(behind_link)
    page = visitor.page
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
    page.reload()
    page.click("#open-history")
    page.click("#conversations li button >> nth=0")
    assert page.inner_text(".chip") == told
    assert page.locator("del").count() == len(kept["taken"])
    assert all(page.locator("del").nth(index).is_hidden() for index in range(len(kept["taken"])))


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


def test_asking_again_in_vain_loses_nothing(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
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


def test_who_wrote_what_is_told_on_demand(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask(QUESTION)
    visitor.wait_for_answers(1)
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


def test_markdown_becomes_elements_and_html_stays_text(behind_link, visit):
    visitor = visit(behind_link)
    assert {text: html(visitor, text) for text in MARKDOWN} == MARKDOWN
    assert {request.url.removeprefix(behind_link.url)[0] for request in visitor.requests} == {"/"}


HALF = {
    "```py\nx = 1": "<div><pre><code>x = 1</code></pre></div>",
    "```py\nx\n``": "<div><pre><code>x</code></pre></div>",
    "a **bold": "<p>a <strong>bold</strong></p>",
    "a `co": "<p>a <code>co</code></p>",
    "a\n-": "<p>a</p>",
    "1. a\n2. **b": "<ol><li><p>a</p></li><li><p><strong>b</strong></p></li></ol>",
}


def test_half_an_answer_is_drawn_as_what_it_will_be(behind_link, visit):
    visitor = visit(behind_link)
    assert {text: html(visitor, text, is_open=True).replace(' start="1"', "") for text in HALF} == HALF


def test_every_beginning_of_an_answer_is_drawn_as_the_whole_one_would_be(behind_link, visit):
    """Token by token, or at once: the same elements in the end."""
    visitor = visit(behind_link)
    text = "\n".join([*MARKDOWN, *HALF])
    whole = html(visitor, text)
    visitor.page.evaluate("document.getElementById('turns').replaceChildren()")
    drawn = visitor.page.evaluate(
        """async (text) => {
            const { AnswerText } = await import("./answer.js");
            const { AnswerView } = await import("./render.js");
            const draw = (container, ends) => {
                const answer = new AnswerText(), view = new AnswerView(container);
                let start = 0;
                for (const end of ends) {
                    answer.take(text.slice(start, end), { origin: "bonus" });
                    view.show(answer, end < text.length);
                    start = end;
                }
                return container.innerHTML;
            };
            const step = draw(document.createElement("div"), Array.from({length: text.length}, (_, i) => i + 1));
            return [step, draw(document.createElement("div"), [text.length])];
        }""",
        text,
    )
    assert drawn[0] == drawn[1]
    assert whole.count("<li>") == drawn[1].count("<li>") > 3


def test_links_lead_away_safely(behind_link, visit):
    visitor = visit(behind_link)
    visitor.draw([("see https://a.example/b", {"origin": "bonus"})])
    link = visitor.answer.locator("a")
    assert {"noopener", "noreferrer"} <= set(link.get_attribute("rel").split())
    assert link.get_attribute("target") == "_blank"


def test_a_word_of_two_origins_keeps_its_marks(behind_link, visit):
    visitor = visit(behind_link)
    visitor.draw(
        [("an **ex", {"origin": "accepted"}), ("am", {"origin": "bonus"}), ("ple** `c", {"origin": "accepted"})]
    )
    assert visitor.answer.locator("strong").inner_text() == "example"
    assert [text for text, _ in spans(visitor)] == ["an ", "ex", "am", "ple", " `c"]


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


def test_what_was_taken_back_is_not_selected(behind_link, visit):
    visitor = visit(behind_link)
    visitor.draw([*OUTAGE, *BACK])
    selected = visitor.page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('.assistant .text')), getSelection().toString()"
    )
    assert selected == "one 𝄞 twelve men"
