// Private parts of a message, marked <<private: like this>> or <<EMAIL: a@b.c>>, by the same rules and expressions as
// outrider_client.privacy.fences, which explains them.

const OPENING = "<<(?:private|[A-Z][A-Z0-9_]+):(?=\\s)";
const MARK = new RegExp(
  [
    String.raw`(?<escaped>\\<<)`,
    String.raw`(?<code>(?<![^\n])[ \t]*(?<block>\x60{3,}|~{3,})[^\n\x60]*(?:\n(?![ \t]*\k<block>)[^\n]*)*(?:\n[ \t]*\k<block>)?` +
      String.raw`|(?<!\x60)(?<ticks>\x60+)(?!\x60)[^\n]*?(?<!\x60)\k<ticks>(?!\x60))`,
    String.raw`<<(?<label>private|[A-Z][A-Z0-9_]+):(?=\s)(?<inner>(?:(?!>>)[\s\S])*)(?<close>>>)?`,
    String.raw`(?<meant><<[ \t]*(?:[Pp]rivate|[A-Z][A-Z0-9_]+):(?!:)(?=(?:(?!<<|>>)[\s\S])*>>)` +
      String.raw`|(?<![<A-Za-z0-9_)\]])<<(?![\s<>=])(?:(?!<<|>>)[\s\S])*(?<![\s<])>>(?![A-Za-z0-9_(=>]))`,
  ].join("|"),
  "g",
);

/** Returns parts {text, private, kind} in order. Throws an Error for a wrong marker. */
export function parseFences(text) {
  const parts = [];
  let safe = "", end = 0;
  for (const mark of text.matchAll(MARK)) {
    safe += text.slice(end, mark.index);
    end = mark.index + mark[0].length;
    if (mark.groups.label === undefined) {
      safe += asText(mark);
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

function asText({ 0: text, groups }) {
  if (groups.meant !== undefined) {
    throw new Error("A private marker << is not read: write <<private: ...>> or <<EMAIL: ...>>, or \\<< for the characters.");
  }
  if (groups.code !== undefined && new RegExp(`(?<!\\\\)${OPENING}`).test(groups.code)) {
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
