// Reads the inline marks of Markdown in a piece of text: code, bold, italic, links. No DOM.
// Nodes: {type: "text" or "code", from, to}, {type: "strong" or "em", nodes}, {type: "link", href, nodes}.

const MARKABLE = /[!-/:-@[-`{-~]/;
// As in markdown.js, what may be long is matched in one way only: a run of blanks ends where no blank follows.
const LINK = /!?\[((?:\\.|[^[\]\\\n])*)\]\([ \t]*(?![ \t])([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)(?:[ \t]+(?![ \t])(?:"[^"\n]*"[ \t]*)?)?\)/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BARE_LINK = /^https?:\/\/[^\s<>"`*]+/;
const SAFE_PROTOCOL = /^(?:https?|mailto):/i;
const MAX_DEPTH = 6;

/** `isOpen`: more text will follow, so that what is open at its end counts as closed there. */
export function parseInline(text, { isOpen = false } = {}) {
  return new InlineReader(text).read(0, text.length, isOpen, 0);
}

class InlineReader {
  #text;
  #missing = new Set(); // marks that do not close, and where the search ended: it is not repeated
  #ticksByLength = null;
  #isInLink = false; // a link within a link is text

  constructor(text) {
    this.#text = text;
  }

  read(from, to, isOpen, depth) {
    const nodes = [];
    let plain = from;
    for (let at = from; at < to;) {
      const found = this.#find(at, to, isOpen, depth);
      if (!found?.node) {
        at = found?.next ?? at + 1;
        continue;
      }
      if (plain < at) nodes.push({ type: "text", from: plain, to: at });
      nodes.push(found.node);
      at = plain = found.next;
    }
    if (plain < to) nodes.push({ type: "text", from: plain, to });
    return nodes;
  }

  /** What begins at this place: {node, next}, or only {next} where a mark is text. */
  #find(at, to, isOpen, depth) {
    const text = this.#text;
    switch (text[at]) {
      case "\\":
        return at + 1 < to && MARKABLE.test(text[at + 1]) ? { node: { type: "text", from: at + 1, to: at + 2 }, next: at + 2 } : null;
      case "`":
        return this.#code(at, to, isOpen);
      case "*":
      case "_":
        return this.#emphasis(at, to, isOpen, depth);
      case "!":
      case "[":
        return this.#isInLink ? null : this.#link(at, to, depth);
      case "<":
        return this.#isInLink ? null : this.#angleAddress(at, to);
      case "h":
        return this.#isInLink || /\w/.test(text[at - 1] ?? "") ? null : this.#bareAddress(at, to);
      default:
        return null;
    }
  }

  #code(at, to, isOpen) {
    const from = at + this.#run(at, to), marker = this.#text.slice(at, from);
    let end = this.#closingTicks(marker, from, to);
    if (end === null && !isOpen) return { next: from };
    const next = end === null ? to : end + marker.length;
    end ??= to;
    const isPadded = end - from > 2 && this.#text[from] === " " && this.#text[end - 1] === " ";
    return { node: { type: "code", from: from + isPadded, to: end - isPadded }, next };
  }

  #closingTicks(marker, from, to) {
    const places = this.#ticks().get(marker.length) ?? [];
    const place = places[firstIndex(places, (at) => at >= from)];
    return place < to ? place : null;
  }

  /** Where runs of backticks begin, in order, by their length: a text may have runs of a thousand lengths. */
  #ticks() {
    if (this.#ticksByLength) return this.#ticksByLength;
    this.#ticksByLength = new Map();
    for (const { 0: run, index } of this.#text.matchAll(/`+/g)) {
      if (!this.#ticksByLength.has(run.length)) this.#ticksByLength.set(run.length, []);
      this.#ticksByLength.get(run.length).push(index);
    }
    return this.#ticksByLength;
  }

  #emphasis(at, to, isOpen, depth) {
    const run = this.#run(at, to), from = at + run, mark = this.#text[at];
    const isWithinWord = mark === "_" && /\w/.test(this.#text[at - 1] ?? "");
    if (run > 3 || depth >= MAX_DEPTH || isWithinWord || from >= to || /\s/.test(this.#text[from])) return { next: from };
    const marker = mark.repeat(run);
    const end = this.#closing(marker, from, to);
    if (end === null && !isOpen) return { next: from };
    const nodes = this.read(from, end ?? to, isOpen && end === null, depth + 1);
    const node = run === 3 ? { type: "strong", nodes: [{ type: "em", nodes }] } : { type: run === 2 ? "strong" : "em", nodes };
    return { node, next: end === null ? to : end + run };
  }

  /** Where `marker` closes; null: nowhere. Shorter runs within are somebody else's; of a longer one it is the end. */
  #closing(marker, from, to) {
    if (this.#missing.has(marker + to)) return null;
    for (let at = from; at < to;) {
      const char = this.#text[at];
      const run = char === marker[0] || char === "`" ? this.#run(at, to) : 1;
      if (char === "\\") at++;
      else if (char === "`") at = (this.#closingTicks(char.repeat(run), at + run, to) ?? at);
      else if (char === marker[0] && this.#closes(marker, at, run, to)) return at + run - marker.length;
      at += run;
    }
    this.#missing.add(marker + to);
    return null;
  }

  #closes(marker, at, run, to) {
    if (/\s/.test(this.#text[at - 1]) || (run !== marker.length && run !== 3)) return false;
    return marker[0] === "*" || at + run >= to || !/\w/.test(this.#text[at + run]);
  }

  #link(at, to, depth) {
    LINK.lastIndex = at;
    const match = LINK.exec(this.#text);
    if (!match || at + match[0].length > to) return null;
    const href = safeAddress(match[2]), from = at + match[0].indexOf("[") + 1;
    if (!href) return { next: at + match[0].length };
    this.#isInLink = true;
    const nodes = this.read(from, from + match[1].length, false, depth);
    this.#isInLink = false;
    return { node: { type: "link", href, nodes }, next: at + match[0].length };
  }

  #angleAddress(at, to) {
    ANGLE_LINK.lastIndex = at;
    const match = ANGLE_LINK.exec(this.#text);
    if (!match || at + match[0].length > to) return null;
    return this.#addressed(match[1], at + 1, at + match[0].length);
  }

  #bareAddress(at, to) {
    const match = BARE_LINK.exec(this.#text.slice(at, to));
    if (!match) return null;
    const shown = trimmedAddress(match[0]);
    // What is no address is not read again from each http within.
    return this.#addressed(shown, at, at + shown.length) ?? { next: at + match[0].length };
  }

  #addressed(shown, from, next) {
    const href = safeAddress(shown);
    return href && { node: { type: "link", href, nodes: [{ type: "text", from, to: from + shown.length }] }, next };
  }

  /** How often the character at this place is repeated from there on. */
  #run(at, to) {
    let end = at + 1;
    while (end < to && this.#text[end] === this.#text[at]) end++;
    return end - at;
  }
}

/** The index of the first of `items` that fits, where all behind it do; their number where none does. */
export function firstIndex(items, fits) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (fits(items[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** An address that a page may link to, or null. */
function safeAddress(address) {
  try {
    return SAFE_PROTOCOL.test(address) ? new URL(address).href : null; // relative ones would lead into this page
  } catch {
    return null;
  }
}

/** An address in a sentence, without the sentence's marks after it. */
function trimmedAddress(address) {
  const numOpening = address.split("(").length;
  let end = address.length, numClosing = address.split(")").length;
  for (; /[.,;:!?'\])_]/.test(address[end - 1]); end--) {
    if (address[end - 1] === ")" && numClosing-- <= numOpening) break; // it closes a parenthesis of the address
  }
  return address.slice(0, end);
}
