// The text of one answer: who wrote which part, what the target has not checked yet, and what it took back. No DOM.
// Positions of the gateway count code points, as Python does; those of `runs` and `taken` are JavaScript's.

const TOGETHER_MS = 300; // text that settles within this time settles as one

export class AnswerText {
  runs = []; // neighbors of one origin: {text, length, origin, settledAt}; `length` counts code points
  taken = []; // what the target took back: {at, text, takenAt}
  numConfirmed = 0; // words written offline that the target confirmed

  /** Restores a kept answer. */
  static of({ parts, taken = [], confirmed = 0 }) {
    const answer = new AnswerText();
    for (const { text, origin } of parts) answer.take(text, { origin }, -Infinity);
    answer.taken = taken.map((piece) => ({ ...piece, takenAt: -Infinity }));
    answer.numConfirmed = confirmed;
    return answer;
  }

  get text() {
    return this.runs.map(({ text }) => text).join("");
  }

  get numUnverified() {
    return numWords(this.runs.filter(isUnverified).map(({ text }) => text).join(""));
  }

  get numTaken() {
    return this.taken.reduce((sum, { text }) => sum + numWords(text), 0);
  }

  /** Applies a streamed chunk: its text, and the gateway's extension. */
  take(text, { origin = "bonus", offset, rollback_to: rollbackTo, verified_to: verifiedTo } = {}, now = performance.now()) {
    if (Number.isInteger(rollbackTo)) this.#cut(rollbackTo, now);
    if (Number.isInteger(verifiedTo)) this.#verify(offset, verifiedTo, now);
    if (text) this.#add({ text, length: [...text].length, origin, settledAt: origin === "corrected" ? now : -Infinity });
  }

  #add(run) {
    const last = this.runs.at(-1);
    if (last && areAlike(last, run)) this.runs[this.runs.length - 1] = joined(last, run);
    else this.runs.push(run);
  }

  #cut(end, now) {
    const removed = this.runs.splice(this.#split(end)).map(({ text }) => text).join("");
    const { length } = this.text;
    for (const piece of this.taken) piece.at = Math.min(piece.at, length);
    if (removed.trim()) this.taken.push({ at: length, text: removed, takenAt: now });
  }

  #verify(start, end, now) {
    const first = this.#split(start), last = this.#split(end);
    const checked = this.runs.slice(first, last).filter(isUnverified);
    this.numConfirmed += numWords(checked.map(({ text }) => text).join(""));
    for (const run of checked) Object.assign(run, { origin: "accepted", settledAt: now });
    const runs = this.runs;
    this.runs = [];
    runs.forEach((run) => this.#add(run));
  }

  /** Returns the index of the run that begins at the code point `position`, which it splits off if need be. */
  #split(position) {
    let start = 0;
    for (const [index, run] of this.runs.entries()) {
      if (start >= position) return index;
      if (start + run.length > position) {
        const points = [...run.text], length = position - start;
        const before = { ...run, text: points.slice(0, length).join(""), length };
        const after = { ...run, text: points.slice(length).join(""), length: run.length - length };
        this.runs.splice(index, 1, before, after);
        return index + 1;
      }
      start += run.length;
    }
    return this.runs.length;
  }
}

const isUnverified = ({ origin }) => origin === "unverified";
const numWords = (text) => text.split(/\s+/).filter(Boolean).length;

function areAlike(a, b) {
  return a.origin === b.origin && (a.settledAt === b.settledAt || Math.abs(a.settledAt - b.settledAt) < TOGETHER_MS);
}

function joined(a, b) {
  return { ...a, text: a.text + b.text, length: a.length + b.length };
}
