// Conversations kept in this browser, and nowhere else.

const PLACE = "outrider conversations";
const OFF = "outrider keeps nothing";

const MAX_LISTED = 1000;
const FIGURES = ["tokens_per_second", "time_to_first_token_ms", "mean_acceptance_length", "rtt_ms", "bytes_up", "bytes_down"];

/** What is stored under a name, or null; a browser may forbid it. */
export function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Stores a value, and tells whether there was room. */
export function write(name, value) {
  try {
    localStorage.setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

export const keeps = () => read(OFF) === null;

/** Returns all conversations, newest first: {id, title, turns}. What is none, as others may have stored it, is left out. */
export function kept() {
  try {
    return JSON.parse(read(PLACE)).filter(isConversation).slice(0, MAX_LISTED).map(checked);
  } catch {
    return [];
  }
}

const isText = (value) => typeof value === "string";
const isListOf = (values, fits) => Array.isArray(values) && values.every((value) => value instanceof Object && fits(value));

function isConversation(stored) {
  return stored instanceof Object && isText(stored.id) && isText(stored.title) && isListOf(stored.turns, isTurn);
}

function isTurn({ role, parts, taken = [], confirmed = 0, remark = "" }) {
  return (role === "user" || role === "assistant") && isListOf(parts, ({ text }) => isText(text)) &&
    isListOf(taken, ({ at, text }) => Number.isInteger(at) && isText(text)) && Number.isInteger(confirmed) && isText(remark);
}

function checked({ id, title, turns }) {
  const isWhole = (statistics) => statistics instanceof Object && FIGURES.every((name) => Number.isFinite(statistics[name]));
  const shown = turns.map((turn) => ({ ...turn, statistics: isWhole(turn.statistics) ? turn.statistics : null }));
  return { id, title: title.slice(0, 60), turns: shown };
}

/** Stores a conversation, unless the user wants none kept. Drops the oldest if the browser has no more room. */
export function keep(conversation) {
  if (!keeps() || !conversation.turns.length || conversation.forgotten) return;
  store([conversation, ...kept().filter(({ id }) => id !== conversation.id)]);
}

export function forget(id) {
  store(kept().filter((conversation) => conversation.id !== id));
}

export function forgetAll() {
  remove(PLACE);
}

export function keepFromNowOn(wanted) {
  if (wanted) remove(OFF);
  else write(OFF, "true");
  if (!wanted) forgetAll();
}

function remove(name) {
  try {
    localStorage.removeItem(name);
  } catch {
    // forbidden, as in `read`: there is nothing
  }
}

function store(conversations) {
  let count = conversations.length;
  // A tenth at a time: each try writes out all of them.
  while (!write(PLACE, JSON.stringify(conversations.slice(0, count))) && count) count = Math.floor(count * 0.9);
}
