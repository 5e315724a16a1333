// Who wrote what, on demand: tints, their legend, and a tip that names the origin of the words under the pointer, or of
// those that the arrow keys choose in an answer that has the focus.

const MEANINGS = {
  accepted: "Drafted on this device, confirmed by the server",
  bonus: "Written by the server",
  unverified: "Written on this device alone, not checked yet",
  corrected: "Written by the server in place of what this device wrote",
  private: "Private: written on this device, and not sent",
};
const MAX_QUOTED = 60; // characters
const $ = (id) => document.getElementById(id);

let chosen = null; // the span that the tip is about

export const tellsOrigins = () => $("log").classList.contains("tells-origins");

/** Switches the tints on or off. */
export function tellOrigins(wanted) {
  $("log").classList.toggle("tells-origins", wanted);
  $("legend").hidden = !wanted;
  $("who-wrote").setAttribute("aria-pressed", String(wanted));
  choose(null);
  updateAnswers();
}

/** Makes the answers reachable by Tab while origins are told, and no longer. */
export function updateAnswers() {
  for (const text of document.querySelectorAll(".turn.assistant .text")) {
    if (tellsOrigins()) Object.assign(text, { tabIndex: 0, role: "group", ariaLabel: "Answer; the arrow keys tell who wrote which words" });
    else ["tabindex", "role", "aria-label"].forEach((name) => text.removeAttribute(name));
  }
}

export function watchOrigins() {
  const log = $("log");
  log.addEventListener("pointerover", ({ target }) => tellsOrigins() && choose(target.closest("[data-origin]")));
  log.addEventListener("pointerleave", () => choose(null));
  log.addEventListener("focusout", () => choose(null));
  log.addEventListener("scroll", () => chosen && place(chosen));
  log.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !tellsOrigins() || !event.target.matches(".turn.assistant .text")) return;
    event.preventDefault();
    const spans = [...event.target.querySelectorAll("[data-origin]")], index = spans.indexOf(chosen) + step;
    choose(spans[Math.min(Math.max(index, 0), spans.length - 1)], { isSpoken: true });
  });
}

function choose(span, { isSpoken = false } = {}) {
  if (span === chosen) return;
  chosen?.classList.remove("chosen");
  chosen = span;
  $("tip").hidden = !span;
  if (!span) return;
  span.classList.add("chosen");
  const meaning = MEANINGS[span.dataset.origin];
  $("tip").textContent = meaning;
  $("tip-spoken").textContent = isSpoken ? `${span.textContent.slice(0, MAX_QUOTED)}: ${meaning}` : "";
  if (isSpoken) span.scrollIntoView({ block: "nearest" });
  place(span);
}

function place(span) {
  const box = span.getClientRects()[0];
  if (!box) return choose(null); // drawn anew meanwhile
  const tip = $("tip"), limit = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(box.left, limit))}px`;
  tip.style.top = `${box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
}
