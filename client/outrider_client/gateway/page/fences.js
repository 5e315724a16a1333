// Private parts of a message, marked <<like this>> or <<EMAIL: a@b.c>>, by the same rules as outrider_client.privacy.fences.

const MARK = /\\<<|<<|>>/g;
const WITH_KIND = /^([A-Z][A-Z0-9_]*):\s*([\s\S]*\S)\s*$/;

/** Returns parts {text, private, kind} in order. Throws an Error for a wrong marker. */
export function parseFences(text) {
  const parts = [];
  let safe = "", end = 0, opened = null;
  for (const mark of text.matchAll(MARK)) {
    const after = mark.index + mark[0].length;
    if (opened === null) {
      safe += text.slice(end, mark.index);
      end = after;
      if (mark[0] === "<<") opened = after;
      else safe += mark[0].replace("\\", "");
    } else if (mark[0] === "<<") {
      throw new Error("A private marker << opens within another one: close that first.");
    } else if (mark[0] === ">>") {
      if (safe) parts.push({ text: safe, private: false });
      parts.push(privatePart(text.slice(opened, mark.index)));
      safe = "";
      end = after;
      opened = null;
    }
  }
  if (opened !== null) throw new Error("A private marker << does not close: end it with >>.");
  safe += text.slice(end);
  if (safe) parts.push({ text: safe, private: false });
  return parts;
}

function privatePart(inner) {
  if (!inner.trim()) throw new Error("A private marker holds nothing: put the private text between << and >>.");
  const withKind = WITH_KIND.exec(inner);
  return withKind ? { text: withKind[2], private: true, kind: withKind[1] } : { text: inner, private: true };
}

/** Returns the text with the selection from `start` to `end` marked as private, as `kind` if that is not empty. */
export function withMark(text, start, end, kind) {
  const marked = `<<${kind ? `${kind}: ` : ""}${text.slice(start, end)}>>`;
  return text.slice(0, start) + marked + text.slice(end);
}
