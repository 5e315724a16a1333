// The conversation: asks the gateway, shows the answers, and keeps both.

import { AnswerText } from "./answer.js";
import { announce, button, element } from "./elements.js";
import { parseFences } from "./fences.js";
import { call, events } from "./gateway.js";
import * as history from "./history.js";
import { isOnline, onLinkChange } from "./link.js";
import { updateAnswers } from "./origins.js";
import { AnswerTurn, userTurn } from "./turn.js";

const REMARKS = {
  limit: "Stopped at the token limit: ask it to go on, or change the limit in the settings.",
  repetition: "Stopped: the answer goes round in circles. Ask in other words.",
  context: "Stopped: the model's context is full.",
  unverified: "The link did not come back: the end of this answer is unverified.",
  private: "Written on this device alone: the conversation holds private text. A new conversation asks the server again.",
  link: "The link broke and did not come back in time.",
  interrupted: "Interrupted: the page was closed while this was written.",
};
const KEEP_MS = 1000; // between two copies of an answer in progress
const $ = (id) => document.getElementById(id);

let page = null; // what the page does for a chat: {settings(), showProblem(message), giveBack(written), askForKey(error), changed()}
let conversation = fresh();
let asking = null; // the answer in progress: {controller, conversation, keep}
let isLeaving = false; // the browser then breaks the answer off, as if the network had failed
let newest = null; // the AnswerTurn that can be asked again
let model = null;

function fresh() {
  const id = `${Date.now()}-${Math.random()}`; // crypto.randomUUID exists only on localhost and over TLS
  return { id, title: "", turns: [] }; // a turn: {role, parts, taken?, confirmed?, statistics?, remark?}
}

export const isPrivate = () => conversation.turns.some((turn) => turn.parts.some((part) => part.private));
export const stop = () => asking?.controller.abort();

export function startChat(callbacks) {
  page = callbacks;
  onLinkChange(labelAgain);
  window.addEventListener("beforeunload", () => {
    isLeaving = true;
    asking?.keep();
  });
  followAnswers();
  busy(false);
  list();
}

// -- questions and answers

/** Asks, and returns true; or says what is wrong with the message, and returns false. */
export function send(written) {
  if (!written || asking) return false;
  let parts;
  try {
    parts = parseFences(written);
  } catch (error) {
    page.showProblem(error.message);
    return false;
  }
  page.showProblem("");
  conversation.turns.push({ role: "user", parts });
  conversation.title ||= titled(parts);
  history.keep(conversation);
  const question = userTurn(parts);
  show(question);
  list();
  answer((asked, error) => takeBack(asked, question, written, error));
  return true;
}

/** Replaces the newest answer by another one. */
function askAgain() {
  if (asking) return;
  const asked = conversation, old = asked.turns.pop(), turn = newest;
  turn.element.remove();
  page.showProblem("");
  answer((_, error) => {
    asked.turns.push(old);
    if (conversation === asked) $("turns").append(turn.element);
    if (!isStop(error)) fail(error);
  }, { isAgain: true });
}

const isStop = (error) => error.name === "AbortError";

/** Streams an answer into the conversation that asked. Calls `undo` if that fails, or is stopped when asked again, before any text. */
async function answer(undo, { isAgain = false } = {}) {
  const asked = conversation; // the user may open another one meanwhile
  const turn = new AnswerTurn(), before = newest;
  show(turn.element);
  const controller = new AbortController();
  let statistics = null, remark = "", keptAt = 0;
  const own = (told) => kept(turn.answer, statistics, told);
  const keep = () => {
    keptAt = performance.now();
    if (turn.answer.text) history.keep({ ...asked, turns: [...asked.turns, own(REMARKS.interrupted)] });
  };
  asking = { controller, conversation: asked, keep };
  isLeaving = false;
  newest = null;
  busy(true);
  try {
    for await (const chunk of events(await call("v1/chat/completions", { body: await request(asked), signal: controller.signal }))) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.choices[0]) turn.take(chunk.choices[0].delta?.content ?? "", chunk.outrider);
      const told = [REMARKS[chunk.outrider?.reason], ...(chunk.outrider?.warnings ?? []).map(sentence)].filter(Boolean);
      remark = told.join(" ") || remark;
      statistics = chunk.outrider?.statistics ?? statistics;
      if (performance.now() - keptAt > KEEP_MS) keep();
    }
  } catch (error) {
    if (isLeaving) return keep();
    if (isStop(error) && (turn.answer.text || !isAgain)) remark = "Stopped.";
    else if (turn.answer.text) remark = error.message;
    else {
      turn.element.remove();
      if (conversation === asked) newest = before;
      return undo(asked, error);
    }
  } finally {
    asking = null;
    busy(false);
  }
  asked.turns.push(own(remark));
  history.keep(asked);
  finish(turn, statistics, remark, asked);
  announce("The answer is complete.");
  list();
}

function kept(answerText, statistics, remark) {
  const parts = answerText.runs.map(({ text, origin }) => ({ text, origin, private: origin === "private" }));
  const taken = answerText.taken.map(({ at, text }) => ({ at, text }));
  return { role: "assistant", parts, taken, confirmed: answerText.numConfirmed, statistics, remark };
}

function finish(turn, statistics, remark, asked) {
  turn.finish({ statistics, remark, onAgain: askAgain });
  turn.again.hidden = true;
  updateAnswers();
  if (asked !== conversation) return;
  newest = turn;
  labelAgain();
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** Only the newest answer can be asked again: later turns rest on the others. */
function labelAgain() {
  if (!newest) return;
  newest.again.hidden = false;
  const isUnchecked = newest.answer.numUnverified > 0 && isOnline() && page.settings().mode !== "offline";
  newest.again.textContent = isUnchecked ? "Ask again now that the link is back" : "Ask again";
  newest.again.classList.toggle("primary", isUnchecked);
}

/** Undoes a question that got no answer; one that its user has left stays in its conversation. */
function takeBack(asked, question, written, error) {
  if (conversation === asked) {
    question.remove();
    asked.turns.pop();
    if (asked.turns.length) history.keep(asked);
    else history.forget(asked.id);
    list();
    showGreeting();
    page.giveBack(written);
  }
  fail(error);
}

function fail(error) {
  page.showProblem(error.message);
  if (error.status === 401) page.askForKey(error);
}

async function request({ turns }) {
  model ??= (await (await call("v1/models")).json()).data[0].id;
  const { maxTokens, temperature, mode, privacy } = page.settings();
  return {
    model,
    messages: turns.map(({ role, parts }) => ({ role, content: content(parts) })),
    stream: true,
    ...(maxTokens >= 1 && { max_tokens: maxTokens }),
    ...(temperature >= 0 && { temperature }),
    outrider: { mode, privacy, unverified: "stream", stop_loops: true },
  };
}

/** A message's content for the gateway: plain text, or parts if some are private. */
function content(parts) {
  if (parts.every((part) => !part.private)) return parts.map((part) => part.text).join("");
  return parts.map(({ text, private: isPrivatePart, kind }) => ({ type: "text", text, private: !!isPrivatePart, ...(kind && { kind }) }));
}

function busy(is) {
  $("stop").hidden = !is;
  $("send").hidden = is;
  if (newest) newest.again.hidden = is;
}

// -- the log

function show(turn) {
  if (newest) newest.again.hidden = true;
  $("turns").append(turn);
  showGreeting();
  isFollowing = true;
  follow();
}

function showGreeting() {
  $("greeting").hidden = conversation.turns.length > 0;
}

let isFollowing = true; // until the reader scrolls up

function follow() {
  if (isFollowing) $("log").scrollTop = $("log").scrollHeight;
  $("to-newest").hidden = isFollowing;
}

function followAnswers() {
  const log = $("log");
  let before = 0;
  log.addEventListener("scroll", () => {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 8) isFollowing = true;
    else if (log.scrollTop < before) isFollowing = false;
    before = log.scrollTop;
    $("to-newest").hidden = isFollowing;
  });
  $("to-newest").addEventListener("click", () => {
    isFollowing = true;
    follow();
  });
  const watched = new ResizeObserver(follow);
  watched.observe($("turns"));
  watched.observe(log);
}

// -- conversations

export const openNew = () => open(fresh());

function open(stored) {
  if (stored.id === conversation.id) return;
  stop();
  conversation = stored;
  newest = null;
  $("turns").replaceChildren(...stored.turns.map(restoredTurn));
  isFollowing = true;
  follow();
  showGreeting();
  list();
  page.changed();
}

function restoredTurn(turn) {
  if (turn.role === "user") return userTurn(turn.parts);
  const restored = new AnswerTurn(AnswerText.of(turn));
  finish(restored, turn.statistics, turn.remark, turn === conversation.turns.at(-1) ? conversation : null);
  return restored.element;
}

export function list() {
  const items = history.kept().map((stored) => {
    const choose = button({ textContent: stored.title }, () => open(stored));
    choose.setAttribute("aria-current", String(stored.id === conversation.id));
    const remove = button({ textContent: "✕", ariaLabel: `Forget ${stored.title}` }, () => forget(stored.id));
    return element("li", {}, [choose, remove]);
  });
  $("conversations").replaceChildren(...items);
}

/** Forgets one conversation, or all of them. */
export function forget(id) {
  if (asking && (id ?? asking.conversation.id) === asking.conversation.id) {
    asking.conversation.turns = []; // what is still written of it is not kept
    asking.conversation.forgotten = true;
    stop();
  }
  if (id === undefined) history.forgetAll();
  else history.forget(id);
  if ((id ?? conversation.id) === conversation.id) openNew();
  list();
}

const titled = (parts) => parts.map((part) => (part.private ? "…" : part.text)).join("").slice(0, 60);
