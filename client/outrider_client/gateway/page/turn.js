// A turn of the conversation, as an element of the log.

import { AnswerText } from "./answer.js";
import { button, copyButton, element } from "./elements.js";
import { inBytes } from "./link.js";
import { AnswerView } from "./render.js";

const FIGURES = [
  ["Tokens written", (s) => s.new_tokens],
  ["Speed", (s) => `${s.tokens_per_second.toFixed(1)} tokens/s`],
  ["First word after", (s) => `${s.time_to_first_token_ms.toFixed(0)} ms`],
  ["Tokens a reply of the server", (s) => s.mean_acceptance_length.toFixed(2)],
  ["Round trip", (s) => `${s.rtt_ms.toFixed(0)} ms`],
  ["Replies of the server", (s) => s.target_calls],
  ["Sent", (s) => inBytes(s.bytes_up)],
  ["Received", (s) => inBytes(s.bytes_down)],
  ["Outages", (s) => (s.outages ? `${s.outages}, ${seconds(s.offline_ms)} in all` : "none")],
  ["Tokens not checked", (s) => s.unverified],
  ["Tokens taken back", (s) => s.rolled_back],
];

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** A message of the user, its private parts marked. */
export function userTurn(parts) {
  const pieces = parts.map((part) => {
    if (!part.private) return part.text;
    return element("mark", { textContent: part.text, title: part.kind ? `private: ${part.kind}` : "private" });
  });
  return framed("user", "You", [element("div", { className: "text" }, pieces)]);
}

/** The turn of an answer: shows its AnswerText while it is written, and what one can do with it afterwards. */
export class AnswerTurn {
  #isRequested = false;

  constructor(answer = new AnswerText()) {
    this.answer = answer;
    this.text = element("div", { className: "text", ariaBusy: "true" });
    this.waiting = element("p", { className: "waiting" }, [
      ...[1, 2, 3].map(() => element("i", { ariaHidden: "true" })),
      element("span", { className: "visually-hidden", textContent: "Waiting for the first word" }),
    ]);
    this.text.append(this.waiting);
    this.element = framed("assistant", "Outrider", [this.text]);
    this.view = new AnswerView(this.text);
  }

  /** Shows a chunk, with others that come before the browser draws again. */
  take(text, extension) {
    this.answer.take(text, extension);
    if (this.#isRequested) return;
    this.#isRequested = true;
    requestAnimationFrame(() => {
      this.#isRequested = false;
      if (this.text.ariaBusy) this.#show(true);
    });
  }

  #show(isOpen) {
    if (this.answer.runs.length) this.waiting.remove();
    this.view.show(this.answer, isOpen);
  }

  /** Ends the answer: {statistics, remark, onAgain}; `onAgain` is called when the user asks again. */
  finish({ statistics, remark, onAgain }) {
    this.#show(false);
    this.waiting.remove();
    this.text.ariaBusy = null;
    const { text } = this.answer;
    this.again = button({ className: "quiet again", textContent: "Ask again" }, onAgain);
    const story = this.#story(statistics);
    if (story) this.element.append(story);
    if (remark) this.element.append(element("p", { className: "remark", textContent: remark }));
    this.element.append(
      element("div", { className: "actions" }, [copyButton("Copy", "Copy the answer", () => text), this.again, ...(statistics ? [figures(statistics)] : [])]),
    );
  }

  /** Says what became of the words of an outage; where some were taken back, a button that shows them. */
  #story(statistics) {
    const { numTaken, numConfirmed, numUnverified } = this.answer;
    const told = [
      numTaken && `${counted(numTaken, "word")} rewritten`,
      numConfirmed && `${numConfirmed}${numTaken ? "" : ` ${numConfirmed === 1 ? "word" : "words"}`} confirmed`,
      numUnverified && `${counted(numUnverified, "word")} not checked`,
    ].filter(Boolean);
    if (!told.length) return null;
    const after = statistics?.outages ? ` after ${seconds(statistics.offline_ms)} offline` : "";
    const words = told.join(", ") + after;
    if (!numTaken) return element("p", { className: "chip", textContent: words });
    const toggle = button({ className: "chip", textContent: words, title: "Show what was rewritten", ariaPressed: "false" }, () => {
      toggle.ariaPressed = String(this.text.classList.toggle("shows-taken"));
    });
    return toggle;
  }
}

function framed(role, who, children) {
  return element("article", { className: `turn ${role}` }, [element("h2", { className: "visually-hidden", textContent: who }), ...children]);
}

function figures(statistics) {
  const rows = FIGURES.map(([name, value]) => {
    return element("tr", {}, [element("th", { scope: "row", textContent: name }), element("td", { textContent: value(statistics) })]);
  });
  return element("details", {}, [element("summary", { textContent: "Figures" }), element("table", {}, [element("tbody", {}, rows)])]);
}
