// Reads Markdown, as far as chats need it, into blocks whose text knows its place in the source. No DOM, and no failure:
// what is not understood is text. Half an answer reads well, too: what is still open at its end counts as closed there.
// HTML is text. Indented code and headings underlined by dashes are not read: models that write them mean neither.

// The text is whatever a model writes: no two parts that may match the same characters stand side by side, or the time
// would grow with the square of a line's length.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const INTERRUPTING_ITEM = /^ {0,3}(?:[-*+]|1[.)]) +\S/;
const DELIMITER_ROW = /^[ \t]*(?:\|[ \t]*)?:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;
const HALF_MARKER = /^[ \t]*(?:`{1,2}|~{1,2}|#{1,6}|[-*+_]{1,2})$/; // of a last line: nobody knows yet what it will be
const MAX_DEPTH = 8; // of lists and quotes within each other

/** Returns blocks {type, start, end, ...}. `isOpen`: the answer is still being written. */
export function parseMarkdown(source, { isOpen = false } = {}) {
  const lines = [];
  for (let start = 0; start <= source.length; start = lines.at(-1).end + 1) {
    const end = source.indexOf("\n", start);
    lines.push(lineOf(source.slice(start, end < 0 ? source.length : end), start));
  }
  if (isOpen && HALF_MARKER.test(lines.at(-1).text)) lines.pop();
  return readBlocks(lines, isOpen, 0);
}

const lineOf = (text, start) => ({ text, start, end: start + text.length });
const without = (line, count) => lineOf(line.text.slice(count), line.start + count);
const indentOf = (line) => line.text.length - line.text.trimStart().length;
const isBlank = (line) => !line.text.trim();

function readBlocks(lines, isOpen, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const nested = depth < MAX_DEPTH && (readQuote(lines, at, isOpen, depth) ?? readList(lines, at, isOpen, depth));
    const { next, ...block } = readFence(lines, at) ?? readHeading(lines[at], at) ?? readRule(lines[at], at) ??
      (nested || (readTable(lines, at) ?? readParagraph(lines, at)));
    blocks.push({ ...block, start: lines[at].start, end: lines[next - 1].end, isOpen: isOpen && next >= lines.length });
    at = next;
  }
  return blocks;
}

/** The text of lines, and the place of each of its characters in the source, which only what is drawn needs. */
class Leaf {
  #lines;
  #places;

  constructor(lines) {
    this.#lines = lines;
    this.text = lines.map((line) => line.text).join("\n");
  }

  get places() {
    this.#places ??= this.#lines.flatMap(({ text, start }) => Array.from({ length: text.length + 1 }, (_, i) => start + i));
    return this.#places;
  }
}

function readFence(lines, at) {
  const opening = FENCE.exec(lines[at].text);
  if (!opening) return null;
  const closing = closingOf(opening);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end].text)) end++;
  const indent = indentOf(lines[at]);
  const code = lines.slice(at + 1, end).map((line) => without(line, Math.min(indent, indentOf(line))));
  return { type: "code", language: opening[2].trim().split(/\s/)[0], leaf: new Leaf(code), next: Math.min(end + 1, lines.length) };
}

const closingOf = ([, marker]) => new RegExp(`^ {0,3}${marker[0]}{${marker.length},}[ \\t]*$`);

function readHeading(line, at) {
  const opening = HEADING.exec(line.text);
  return opening && { type: "heading", level: opening[1].length, leaf: new Leaf([without(line, opening[0].length)]), next: at + 1 };
}

const readRule = (line, at) => (RULE.test(line.text) ? { type: "rule", next: at + 1 } : null);

function readQuote(lines, at, isOpen, depth) {
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next].text)) next++;
  if (next === at) return null;
  const inner = lines.slice(at, next).map((line) => without(line, QUOTE.exec(line.text)[0].length));
  return { type: "quote", blocks: readBlocks(inner, isOpen && next === lines.length, depth + 1), next };
}

function readList(lines, at, isOpen, depth) {
  const first = ITEM.exec(lines[at].text);
  if (!first) return null;
  const isNext = (line) => {
    const mark = line && !RULE.test(line.text) && ITEM.exec(line.text);
    return mark && mark[2].at(-1) === first[2].at(-1) && mark[1].length <= first[1].length + 1;
  };
  const items = [];
  let next = at;
  while (isNext(lines[next])) {
    const [body, end] = itemLines(lines, next);
    items.push(readBlocks(body, isOpen && end === lines.length, depth + 1));
    const after = afterBlanks(lines, end);
    next = isNext(lines[after]) ? after : end;
  }
  return { type: "list", isOrdered: /\d/.test(first[2]), first: parseInt(first[2]), items, next };
}

/** The lines of one list item without its mark, and the index after them. Models indent less than the standard asks. */
function itemLines(lines, at) {
  const mark = ITEM.exec(lines[at].text), least = mark[1].length + 2;
  const body = [without(lines[at], mark[0].length)];
  let next = at + 1, closing = fenceWithin(body[0], null);
  for (; next < lines.length; next++) {
    const line = lines[next], indent = indentOf(line);
    if (isBlank(line) && !closing) {
      const after = afterBlanks(lines, next);
      if (after === lines.length || indentOf(lines[after]) < least) break;
      for (; next < after; next++) body.push(lines[next]);
      next--;
      continue;
    }
    const isLazy = !isBlank(lines[next - 1]) && !ITEM.test(line.text) && !beginsBlock(line);
    if (!closing && indent < least && !isLazy) break;
    body.push(without(line, Math.min(indent, mark[0].length)));
    closing = fenceWithin(body.at(-1), closing);
  }
  return [body, next];
}

/** What closes the fence that is open after this line; null: none is. */
function fenceWithin(line, closing) {
  if (closing) return closing.test(line.text) ? null : closing;
  const opening = FENCE.exec(line.text);
  return opening && closingOf(opening);
}

function afterBlanks(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at++;
  return at;
}

const beginsBlock = ({ text }) => [FENCE, HEADING, RULE, QUOTE, INTERRUPTING_ITEM].some((pattern) => pattern.test(text));

function readParagraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !beginsBlock(lines[next]) && !isTable(lines, next)) next++;
  const [first, ...others] = lines.slice(at, next);
  return { type: "paragraph", leaf: new Leaf([without(first, indentOf(first)), ...others]), next };
}

const isTable = (lines, at) =>
  lines[at].text.includes("|") && at + 1 < lines.length && DELIMITER_ROW.test(lines[at + 1].text) &&
  cellsOf(lines[at]).length === cellsOf(lines[at + 1]).length;

function readTable(lines, at) {
  if (!isTable(lines, at)) return null;
  let next = at + 2;
  while (next < lines.length && lines[next].text.includes("|")) next++;
  const [head, ...rows] = [lines[at], ...lines.slice(at + 2, next)].map(cellsOf);
  return { type: "table", head, rows, next };
}

function cellsOf(line) {
  const cells = [];
  const end = line.text.trimEnd().replace(/(?<!\\)\|$/, "").length;
  let from = indentOf(line) + (line.text.trimStart().startsWith("|") ? 1 : 0);
  for (let at = from; at <= end; at++) {
    if (at < end && (line.text[at] !== "|" || line.text[at - 1] === "\\")) continue;
    const text = line.text.slice(from, at);
    cells.push(new Leaf([lineOf(text.trim(), line.start + from + text.length - text.trimStart().length)]));
    from = at + 1;
  }
  return cells;
}
