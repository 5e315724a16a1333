// Private parts of a message, marked <<private: like this>> or <<EMAIL: a@b.c>>, by the same rules and expressions as
// outrider_client.privacy.fences, which explains them.

const OPENING = "<<(?:private|[A-Z][A-Z0-9_]+):(?=\\s)";
const MARK = new RegExp(
  [
    String.raw`(?<escaped>\\<<)`,
    String.raw`(?<code>(?<![^\n])[ \t]*(?<block>\x60{3,}|~{3,})[^\n\x60]*(?:\n(?![ \t]*\k<block>)[^\n]*)*(?:\n[ \t]*\k<block>)?` +
      String.raw`|(?<!\x60)(?<ticks>\x60+))`,
    String.raw`<<(?<label>private|[A-Z][A-Z0-9_]+):(?=\s)(?<inner>(?:(?!>>)[\s\S])*)(?<close>>>)?`,
    String.raw`(?<meant><<[ \t]*(?:[Pp]rivate|[A-Z][A-Z0-9_]+):(?!:)(?=(?:(?!<<|>>)[\s\S])*>>)` +
      String.raw`|(?<![<A-Za-z0-9_)\]])<<(?![\s<>=])(?:(?!<<|>>)[\s\S])*(?<![\s<])>>(?![A-Za-z0-9_(=>]))`,
  ].join("|"),
  "g",
);

/** Returns parts {text, private, kind} in order. Throws an Error for a wrong marker. */
export function parseFences(text) {
  const parts = [], closings = closingsIn(text);
  let safe = "", end = 0;
  for (let mark; (MARK.lastIndex = end), (mark = MARK.exec(text));) {
    safe += text.slice(end, mark.index);
    end = mark.index + mark[0].length;
    if (mark.groups.ticks !== undefined) end = closings.get(mark.index) ?? end;
    if (mark.groups.label === undefined) {
      safe += asText(mark.groups, text.slice(mark.index, end));
      continue;
    }
    if (safe) parts.push({ text: safe, private: false });
    parts.push(privatePart(mark.groups));
    safe = "";
  }
  safe += text.slice(end);
  if (safe) parts.push({ text: safe, private: false });
  return parts;
}

/** By the start of a run of backticks the end of the next one on its line that is as long. */
function closingsIn(text) {
  const closings = new Map(), latest = new Map();
  for (const { 0: run, index } of text.matchAll(/`+|\n/g)) {
    if (run === "\n") {
      latest.clear();
      continue;
    }
    if (latest.has(run.length)) closings.set(latest.get(run.length), index + run.length);
    latest.set(run.length, index);
  }
  return closings;
}

function asText(groups, text) {
  if (groups.meant !== undefined) {
    throw new Error("A private marker << is not read: write <<private: ...>> or <<EMAIL: ...>>, or \\<< for the characters.");
  }
  if (groups.code !== undefined && new RegExp(`(?<!\\\\)${OPENING}`).test(text)) {
    throw new Error("A private marker << is not read inside code: move it out of the backticks, or write \\<<.");
  }
  return text.replaceAll("\\<<", "<<");
}

function privatePart({ label, inner, close }) {
  if (close === undefined) throw new Error("A private marker << does not close: end it with >>, or write \\<< for the characters.");
  if (new RegExp(OPENING).test(inner)) throw new Error("A private marker << has another one within: close it first.");
  const text = inner.trim();
  if (!text) throw new Error("A private marker holds nothing: put the private text between << and >>.");
  return label === "private" ? { text, private: true } : { text, private: true, kind: label };
}

/** Returns the text with the selection from `start` to `end` marked as private, as `kind` if that is not empty. */
export function withMark(text, start, end, kind) {
  const marked = `<<${kind || "private"}: ${text.slice(start, end)}>>`;
  return text.slice(0, start) + marked + text.slice(end);
}
