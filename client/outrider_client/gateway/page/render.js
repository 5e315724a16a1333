// Draws an answer: its Markdown as elements, and every stretch of text with its origin. Text gets into the page as
// textContent alone, so nothing that a model writes can become an element. Only blocks that changed are drawn again.

import { copyButton, element } from "./elements.js";
import { firstIndex, parseInline } from "./inline.js";
import { parseMarkdown } from "./markdown.js";

const SETTLE_MS = 1600; // as the animation of style.css
const FADE_MS = 7000; // as the animation of style.css
const MAX_TAKEN_WORDS = 24; // of what the target took back, in the text; a button shows the rest

export class AnswerView {
  #drawn = []; // of each block: {key, element}

  constructor(container) {
    this.container = container;
  }

  /** Shows the text of an AnswerText; `isOpen`: more of it will come. */
  show(answer, isOpen) {
    const source = answer.text;
    const blocks = parseMarkdown(source, { isOpen });
    if (!blocks.length && answer.taken.length) blocks.push(emptyBlock(source.length));
    const ink = new Ink(answer);
    let level = 2; // of the heading before: no level may be left out below it
    blocks.forEach((block, index) => {
      if (block.type === "heading") level = block.level = Math.min(block.level + 2, level + 1, 6);
      ink.begin(index ? block.start : 0, blocks[index + 1]?.start ?? Infinity);
      const key = [block.type, block.level, block.isOpen, source.slice(block.start, block.end), ink.look].join("\u0000");
      if (this.#drawn[index]?.key === key) return;
      this.#draw(index, key, block, ink);
    });
    for (const { element: old } of this.#drawn.splice(blocks.length)) old.remove();
  }

  #draw(index, key, block, ink) {
    const old = this.#drawn[index]?.element;
    if (old && block.type === "code" && old.code && old.language === block.language) {
      fillCode(old, block, ink); // in place: its button may have the focus, and its text be scrolled
      this.#drawn[index].key = key;
      return;
    }
    const drawn = DRAW[block.type](block, ink);
    ink.finish(drawn);
    if (old) old.replaceWith(drawn);
    else this.container.append(drawn);
    this.#drawn[index] = { key, element: drawn };
  }
}

const emptyBlock = (at) => ({ type: "paragraph", leaf: { text: "", places: [] }, start: at, end: at, isOpen: false });

/** Hands out the text of one block after another, in order, as spans of one origin each. */
class Ink {
  #runs = []; // {start, end, origin, settledAt}
  #taken;
  #waiting = []; // of the block's pieces that the target took back, those not drawn yet

  constructor({ runs, taken }) {
    let start = 0;
    for (const { text, origin, settledAt } of runs) {
      this.#runs.push({ start, end: start + text.length, origin, settledAt });
      start += text.length;
    }
    this.#taken = taken;
  }

  /** Goes on to the block from `start` to the next one. */
  begin(start, end) {
    this.#waiting = this.#taken.filter(({ at }) => at >= start && at < end);
    const first = firstIndex(this.#runs, (run) => run.end > start);
    const within = this.#runs.slice(first, firstIndex(this.#runs, (run) => run.start >= end));
    const parts = [...within.map((run) => [run.origin, run.start - start, run.settledAt]), ...this.#waiting.map(({ at, takenAt }) => [at, takenAt])];
    this.look = parts.join(); // differs where a block of the same source looks different
  }

  /** Nodes for the characters `from` to `to` of a leaf. */
  write({ text, places }, from, to) {
    const nodes = [];
    for (let at = from; at < to;) {
      while (this.#waiting.length && this.#waiting[0].at <= places[at]) nodes.push(takenBack(this.#waiting.shift()));
      const run = this.#runs[firstIndex(this.#runs, ({ end }) => end > places[at])];
      const limit = Math.min(run?.end ?? Infinity, this.#waiting[0]?.at ?? Infinity);
      let end = at + 1;
      while (end < to && places[end] < limit) end++;
      nodes.push(inked(text.slice(at, end), run));
      at = end;
    }
    return nodes;
  }

  /** What was taken back at the block's end goes to the end of its last text. */
  finish(block) {
    const last = [...block.querySelectorAll("[data-origin], p, li, td")].at(-1) ?? block;
    (last.dataset.origin ? last.parentElement : last).append(...this.#waiting.splice(0).map(takenBack));
  }
}

function inked(text, run = { origin: "bonus", settledAt: -Infinity }) {
  const span = element("span", { textContent: text });
  span.dataset.origin = run.origin;
  const age = performance.now() - run.settledAt;
  if (age < SETTLE_MS) {
    span.className = "settling";
    span.style.animationDelay = `${-age}ms`; // it may be drawn again while it settles
  }
  return span;
}

function takenBack({ text, takenAt }) {
  const words = text.replaceAll(/\*\*|`+|^#+/gm, "").split(/\s+/).filter(Boolean);
  const deleted = element("del", { textContent: words.slice(0, MAX_TAKEN_WORDS).join(" ") });
  if (words.length > MAX_TAKEN_WORDS) {
    deleted.append(element("span", { className: "more", textContent: " …" }));
    deleted.append(element("span", { className: "rest", textContent: ` ${words.slice(MAX_TAKEN_WORDS).join(" ")}` }));
  }
  const age = performance.now() - takenAt;
  deleted.style.animationDelay = `${-age}ms`;
  if (age >= FADE_MS) deleted.classList.add("gone");
  else setTimeout(() => deleted.classList.add("gone"), FADE_MS - age);
  return deleted;
}

const DRAW = {
  paragraph: (block, ink) => element("p", {}, inlines(block, ink)),
  heading: (block, ink) => element(`h${Math.min(Math.max(block.level, 3), 6)}`, {}, inlines(block, ink)),
  rule: () => element("hr"),
  quote: (block, ink) => element("blockquote", {}, block.blocks.map((inner) => DRAW[inner.type](inner, ink))),
  list(block, ink) {
    const items = block.items.map((inner) => element("li", {}, inner.map((each) => DRAW[each.type](each, ink))));
    const list = element(block.isOrdered ? "ol" : "ul", {}, items);
    if (block.isOrdered) list.start = block.first;
    return list;
  },
  table(block, ink) {
    const row = (cells, name) => element("tr", {}, cells.map((leaf) => element(name, {}, inlines({ leaf }, ink))));
    const table = element("table", {}, [
      element("thead", {}, [row(block.head, "th")]),
      element("tbody", {}, block.rows.map((cells) => row(cells, "td"))),
    ]);
    return element("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: "Table" }, [table]);
  },
  code(block, ink) {
    const drawn = element("div", { className: "code" });
    const copy = copyButton("Copy", "Copy the code", () => drawn.leaf.text);
    drawn.language = block.language;
    drawn.code = element("code");
    drawn.append(
      element("div", { className: "bar" }, [element("span", { textContent: block.language || "code" }), copy]),
      element("pre", { tabIndex: 0, role: "group", ariaLabel: `Code ${block.language}`.trim() }, [drawn.code]),
    );
    fillCode(drawn, block, ink);
    return drawn;
  },
};

function fillCode(drawn, { leaf }, ink) {
  drawn.leaf = leaf;
  drawn.code.replaceChildren(...ink.write(leaf, 0, leaf.text.length));
  ink.finish(drawn.code);
}

function inlines({ leaf, isOpen = false }, ink) {
  const nodesOf = (nodes) => nodes.flatMap(nodeOf);
  const nodeOf = (node) => {
    switch (node.type) {
      case "text":
        return ink.write(leaf, node.from, node.to);
      case "code":
        return [element("code", {}, ink.write(leaf, node.from, node.to))];
      case "link":
        return [element("a", { href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer" }, nodesOf(node.nodes))];
      default:
        return [element(node.type, {}, nodesOf(node.nodes))];
    }
  };
  return nodesOf(parseInline(leaf.text, { isOpen }));
}
