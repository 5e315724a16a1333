// The chat page: sends messages to the gateway and shows the answers.

import { parseFences, withMark } from "./fences.js";
import { call, events, hasKey, useKey } from "./gateway.js";
import * as history from "./history.js";
import { watchLink } from "./link.js";
import { answerTurn, userTurn } from "./turn.js";

const MODES = ["auto", "pipelined", "proactive", "stop-and-wait", "server-draft", "stream", "offline"];
const KINDS = ["", "PERSON", "EMAIL", "PHONE", "ADDRESS", "NUMBER"];
const KEPT_SETTINGS = ["mode", "privacy", "max-tokens", "temperature", "tint", "copy-tint", "appearance"];
const REMARKS = {
  limit: "Stopped at the token limit.",
  context: "Stopped: the model's context is full.",
  unverified: "The link did not come back: the end of this answer is unverified.",
  private: "Written on this device alone: the conversation holds private text. A new conversation asks the server again.",
  link: "The link broke, and the drafter could not continue alone.",
  interrupted: "Interrupted: the page was closed while this was written.",
};
const KEEP_MS = 1000; // between two copies of an answer in progress
const $ = (id) => document.getElementById(id);

let conversation = fresh();
let asking = null; // the answer in progress: {controller, conversation, keep}
let isLeaving = false; // the browser then breaks the answer off, as if the network had failed

function fresh() {
  const id = `${Date.now()}-${Math.random()}`; // crypto.randomUUID exists only on localhost and over TLS
  return { id, title: "", turns: [] }; // a turn: {role, parts, statistics?, remark?}
}

// -- messages and answers

async function send() {
  const written = $("message").value.trim();
  if (!written || asking) return;
  let parts;
  try {
    parts = parseFences(written);
  } catch (error) {
    return showProblem(error.message);
  }
  showProblem("");
  $("message").value = "";
  showWhatLeaves();
  conversation.turns.push({ role: "user", parts });
  conversation.title ||= titled(parts);
  history.keep(conversation);
  show(userTurn(parts));
  list();
  await answer(written);
}

/** Streams an answer into the conversation that asked. If that fails before any text, gives the message back. */
async function answer(written) {
  const asked = conversation; // the user may open another one meanwhile
  const { turn, answer: text, finish } = answerTurn();
  show(turn);
  const controller = new AbortController();
  let statistics = null, remark = "", keptAt = 0;
  const own = (told) => {
    const parts = text.origins.map((piece) => ({ ...piece, private: piece.origin === "private" }));
    return { role: "assistant", parts, statistics, remark: told };
  };
  const keep = () => {
    keptAt = performance.now();
    if (text.text) history.keep({ ...asked, turns: [...asked.turns, own(REMARKS.interrupted)] });
  };
  asking = { controller, conversation: asked, keep };
  isLeaving = false;
  busy(true);
  try {
    const body = await request();
    for await (const chunk of events(await call("v1/chat/completions", { body, signal: controller.signal }))) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      if (choice) text.take(choice.delta?.content ?? "", chunk.outrider);
      const told = [REMARKS[chunk.outrider?.reason], ...(chunk.outrider?.warnings ?? []).map(sentence)].filter(Boolean);
      remark = told.join(" ") || remark;
      statistics = chunk.outrider?.statistics ?? statistics;
      if (performance.now() - keptAt > KEEP_MS) keep();
      follow();
    }
  } catch (error) {
    if (isLeaving) return keep();
    if (error.name === "AbortError") remark = "Stopped.";
    else if (!text.text) return takeBack(asked, turn, written, error);
    else remark = error.message;
  } finally {
    asking = null;
    busy(false);
  }
  finish(statistics, remark);
  asked.turns.push(own(remark));
  history.keep(asked);
  list();
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** Undoes a question that got no answer; one that its user has left stays in its conversation. */
function takeBack(asked, turn, written, error) {
  showProblem(error.message);
  if (conversation === asked) {
    turn.previousElementSibling.remove();
    turn.remove();
    asked.turns.pop();
    if (asked.turns.length) history.keep(asked);
    else history.forget(asked.id);
    list();
    if (!$("message").value) $("message").value = written;
    showWhatLeaves();
  }
  if (error.status === 401) askForKey(error);
}

let model = null;

async function request() {
  model ??= (await (await call("v1/models")).json()).data[0].id;
  const maxTokens = $("max-tokens").valueAsNumber, temperature = $("temperature").valueAsNumber;
  return {
    model,
    messages: conversation.turns.map(({ role, parts }) => ({ role, content: content(parts) })),
    stream: true,
    ...(maxTokens >= 1 && { max_tokens: maxTokens }),
    ...(temperature >= 0 && { temperature }),
    outrider: { mode: $("mode").value, privacy: $("privacy").value, unverified: "stream" },
  };
}

/** A message's content for the gateway: plain text, or parts if some are private. */
function content(parts) {
  if (parts.every((part) => !part.private)) return parts.map((part) => part.text).join("");
  return parts.map(({ text, private: isPrivate, kind }) => ({ type: "text", text, private: !!isPrivate, ...(kind && { kind }) }));
}

// -- private text

function markSelection() {
  const field = $("message");
  if (field.selectionStart === field.selectionEnd) return showProblem("First select the private part of your message.");
  showProblem("");
  field.value = withMark(field.value, field.selectionStart, field.selectionEnd, $("kind").value);
  field.focus();
  showWhatLeaves();
}

function showWhatLeaves() {
  let parts = [];
  try {
    parts = parseFences($("message").value);
  } catch {
    // a marker is still being typed; sending reports what is wrong
  }
  const isLocal = $("privacy").value === "local", isPrivate = (part) => part.private;
  const staysWhole = isLocal && conversation.turns.some((turn) => turn.parts.some(isPrivate)); // as does everything after such a turn
  if (!parts.some(isPrivate) && !(staysWhole && parts.length)) return $("leaves").replaceChildren();
  const seen = staysWhole ? [] : isLocal ? parts.slice(0, parts.findIndex(isPrivate)) : parts;
  const pieces = seen.map((part) => (part.private ? marked(`[${part.kind ?? "PRIVATE"}]`) : part.text));
  $("leaves").replaceChildren("The server sees: ", ...(pieces.length ? pieces : ["nothing of this message"]), isLocal && pieces.length ? " … and nothing after it." : "");
}

const marked = (text) => Object.assign(document.createElement("mark"), { textContent: text });

// -- the log

function show(turn) {
  $("hint").hidden = true;
  $("log").append(turn);
  $("log").scrollTop = $("log").scrollHeight;
}

function follow() {
  const log = $("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function open(stored) {
  if (stored.id === conversation.id) return;
  asking?.controller.abort();
  conversation = stored;
  $("log").replaceChildren(...stored.turns.map(restoredTurn));
  $("hint").hidden = stored.turns.length > 0;
  list();
  $("message").focus();
}

function restoredTurn({ role, parts, statistics, remark }) {
  if (role === "user") return userTurn(parts);
  const { turn, answer: text, finish } = answerTurn();
  for (const { text: piece, origin } of parts) text.take(piece, { origin });
  finish(statistics, remark);
  return turn;
}

function list() {
  const items = history.kept().map((stored) => {
    const item = document.createElement("li");
    const choose = Object.assign(document.createElement("button"), { type: "button", textContent: stored.title });
    choose.setAttribute("aria-current", String(stored.id === conversation.id));
    choose.addEventListener("click", () => open(stored));
    const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "✕" });
    remove.setAttribute("aria-label", `Forget ${stored.title}`);
    remove.addEventListener("click", () => {
      forget(stored.id);
    });
    item.append(choose, remove);
    return item;
  });
  $("conversations").replaceChildren(...items);
}

/** Forgets one conversation, or all of them. */
function forget(id) {
  if (asking && (id ?? asking.conversation.id) === asking.conversation.id) {
    asking.conversation.turns = []; // what is still written of it is not kept
    asking.conversation.forgotten = true;
    asking.controller.abort();
  }
  if (id === undefined) history.forgetAll();
  else history.forget(id);
  if ((id ?? conversation.id) === conversation.id) open(fresh());
  list();
}

const titled = (parts) => parts.map((part) => (part.private ? "…" : part.text)).join("").slice(0, 60);

// -- the rest of the page

function busy(is) {
  $("stop").hidden = !is;
  $("send").disabled = is;
}

function showProblem(message) {
  $("problem").textContent = message;
}

/** Asks for the gateway's key; one that was given before has been refused, as the GatewayError `refused` says. */
function askForKey(refused) {
  const dialog = $("key-dialog");
  $("key-problem").textContent = hasKey() ? refused.message : "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      useKey($("key").value);
      resolve();
    }, { once: true });
  });
}

/** Copies plain text unless "Copy the tints too" is checked. */
function copy(event) {
  if ($("copy-tint").checked) return;
  event.clipboardData.setData("text/plain", getSelection().toString());
  event.preventDefault();
}

function restoreSettings() {
  $("mode").replaceChildren(...MODES.map((mode) => new Option(mode)));
  $("kind").replaceChildren(...KINDS.map((kind) => new Option(kind || "anything", kind)));
  for (const id of KEPT_SETTINGS) {
    const field = $(id), stored = localStorage.getItem(`outrider ${id}`);
    if (stored !== null && field.type === "checkbox") field.checked = stored === "true";
    else if (stored !== null) field.value = stored;
    field.addEventListener("change", () => {
      localStorage.setItem(`outrider ${id}`, field.type === "checkbox" ? field.checked : field.value);
      applySettings();
    });
  }
  applySettings();
}

function applySettings() {
  $("log").classList.toggle("tinted", $("tint").checked);
  document.documentElement.dataset.appearance = $("appearance").value;
  showWhatLeaves();
}

restoreSettings();
list();
$("keep-history").checked = history.keeps();
$("keep-history").addEventListener("change", (event) => (history.keepFromNowOn(event.target.checked), list()));
$("forget-all").addEventListener("click", () => forget());
$("new-conversation").addEventListener("click", () => open(fresh()));
$("open-history").addEventListener("click", () => {
  $("history").hidden = !$("history").hidden;
  $("open-history").setAttribute("aria-expanded", String(!$("history").hidden));
});
$("open-panel").addEventListener("click", () => {
  const isOpen = $("panel").classList.toggle("open");
  $("open-panel").setAttribute("aria-expanded", String(isOpen));
});
$("composer").addEventListener("submit", (event) => (event.preventDefault(), send()));
$("stop").addEventListener("click", () => asking?.controller.abort());
$("mark-private").addEventListener("click", markSelection);
$("message").addEventListener("input", showWhatLeaves);
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key.toLowerCase() === "p" && event.altKey) {
    event.preventDefault();
    markSelection();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && asking?.controller.abort());
window.addEventListener("beforeunload", () => {
  isLeaving = true;
  asking?.keep();
});
document.addEventListener("copy", copy);
watchLink(askForKey);
