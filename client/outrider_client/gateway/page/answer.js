// The text of one answer, as spans of one origin each.
// Positions count code points, as Python does, not the UTF-16 units of JavaScript's strings: hence [...text].

export class AnswerText {
  #spans = []; // {start, length, origin, element}

  constructor(element) {
    this.element = element;
  }

  get text() {
    return this.element.textContent;
  }

  get origins() {
    return this.#spans.map(({ origin, element }) => ({ origin, text: element.textContent }));
  }

  /** Adds a streamed chunk: its text, and the gateway's extension. */
  take(text, { origin = "bonus", offset, rollback_to: rollbackTo, verified_to: verifiedTo } = {}) {
    if (Number.isInteger(rollbackTo)) this.#cut(rollbackTo);
    if (Number.isInteger(verifiedTo)) this.#verified(offset, verifiedTo);
    if (text) this.#append(text, origin);
  }

  #append(text, origin) {
    const last = this.#spans.at(-1);
    if (last?.origin === origin && origin !== "unverified") { // each unverified span may be verified alone
      last.element.textContent += text;
      last.length += [...text].length;
      return;
    }
    const element = document.createElement("span");
    element.dataset.origin = origin;
    element.textContent = text;
    this.element.append(element);
    this.#spans.push({ start: this.#length, length: [...text].length, origin, element });
  }

  #cut(end) {
    while (this.#spans.length && this.#spans.at(-1).start >= end) this.#spans.pop().element.remove();
    const last = this.#spans.at(-1);
    if (last && last.start + last.length > end) {
      last.length = end - last.start;
      last.element.textContent = [...last.element.textContent].slice(0, last.length).join("");
    }
  }

  #verified(start, end) {
    for (const span of this.#spans) {
      if (span.origin !== "unverified" || span.start < start || span.start + span.length > end) continue;
      span.origin = span.element.dataset.origin = "accepted";
    }
  }

  get #length() {
    const last = this.#spans.at(-1);
    return last ? last.start + last.length : 0;
  }
}
