// Conversations kept in this browser, and nowhere else.

const PLACE = "outrider conversations";
const OFF = "outrider keeps nothing";

export const keeps = () => localStorage.getItem(OFF) === null;

/** Returns all conversations, newest first: {id, title, turns}. */
export function kept() {
  try {
    return JSON.parse(localStorage.getItem(PLACE)) ?? [];
  } catch {
    return [];
  }
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
  localStorage.removeItem(PLACE);
}

export function keepFromNowOn(wanted) {
  if (wanted) localStorage.removeItem(OFF);
  else localStorage.setItem(OFF, "true");
  if (!wanted) forgetAll();
}

function store(conversations) {
  for (let count = conversations.length; count >= 0; count--) {
    try {
      return localStorage.setItem(PLACE, JSON.stringify(conversations.slice(0, count)));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error;
    }
  }
}
