// A turn of the conversation, as an element of the log.

import { AnswerText } from "./answer.js";
import { inBytes } from "./link.js";

const FIGURES = [
  ["tokens", (s) => s.new_tokens],
  ["tokens/s", (s) => s.tokens_per_second.toFixed(1)],
  ["first token", (s) => `${s.time_to_first_token_ms.toFixed(0)} ms`],
  ["τ, tokens per verdict", (s) => s.mean_acceptance_length.toFixed(2)],
  ["R", (s) => `${s.rtt_ms.toFixed(0)} ms`],
  ["target calls", (s) => s.target_calls],
  ["up", (s) => inBytes(s.bytes_up)],
  ["down", (s) => inBytes(s.bytes_down)],
  ["outages", (s) => s.outages],
  ["unverified", (s) => s.unverified],
  ["rolled back", (s) => s.rolled_back],
];

/** A message of the user, its private parts marked. */
export function userTurn(parts) {
  const { turn, text } = framed("user", "You");
  for (const part of parts) {
    const element = document.createElement(part.private ? "mark" : "span");
    element.textContent = part.text;
    if (part.private) element.title = part.kind ? `private: ${part.kind}` : "private";
    text.append(element);
  }
  return turn;
}

/** An empty answer: {turn, answer, finish}. */
export function answerTurn() {
  const { turn, text } = framed("assistant", "Outrider");
  text.setAttribute("aria-busy", "true");
  const answer = new AnswerText(text);
  const finish = (statistics, remark) => {
    text.removeAttribute("aria-busy");
    if (remark) turn.append(Object.assign(document.createElement("p"), { className: "muted", textContent: remark }));
    if (statistics) turn.append(figures(statistics));
  };
  return { turn, answer, finish };
}

function framed(role, who) {
  const turn = document.createElement("article");
  turn.className = `turn ${role}`;
  const name = Object.assign(document.createElement("p"), { className: "who", textContent: who });
  const text = Object.assign(document.createElement("div"), { className: "text" });
  turn.append(name, text);
  return { turn, text };
}

function figures(statistics) {
  const details = document.createElement("details");
  details.append(Object.assign(document.createElement("summary"), { textContent: "Statistics" }));
  const table = details.appendChild(document.createElement("table")).createTBody();
  for (const [name, value] of FIGURES) {
    const row = table.insertRow();
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: name }));
    row.insertCell().textContent = value(statistics);
  }
  return details;
}
