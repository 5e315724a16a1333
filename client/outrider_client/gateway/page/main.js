// The chat page: the message and its private parts, the settings, the drawers, the keys.

import { forget, isPrivate, list, openNew, send, startChat, stop } from "./chat.js";
import { button } from "./elements.js";
import { parseFences, withMark } from "./fences.js";
import { hasKey, useKey } from "./gateway.js";
import * as history from "./history.js";
import { watchLink } from "./link.js";
import { tellOrigins, tellsOrigins, watchOrigins } from "./origins.js";

const MODES = ["auto", "pipelined", "proactive", "stop-and-wait", "server-draft", "stream", "offline"];
const KINDS = ["", "PERSON", "EMAIL", "PHONE", "ADDRESS", "NUMBER"];
const KEPT_SETTINGS = ["mode", "privacy", "max-tokens", "temperature", "copy-tint", "appearance"];
const EXAMPLES = ["Give me three tips for better sleep.", "Write a Python function that tells whether a word is a palindrome."];
const PRIVATE_EXAMPLE = "Write a short note to <<PERSON: Ann Miller>> that I am late.";
const DRAWERS = { history: "open-history", panel: "open-panel" };
const NARROW = matchMedia("(max-width: 60rem)"); // as in style.css: a drawer then covers the conversation
const $ = (id) => document.getElementById(id);

// -- the message

function submit() {
  if (!send($("message").value.trim())) return;
  $("message").value = "";
  messageChanged();
}

function messageChanged() {
  const field = $("message");
  showProblem("");
  showWhatLeaves();
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function write(text) {
  $("message").focus();
  $("message").select();
  document.execCommand("insertText", false, text); // unlike a new value, the browser can undo it
}

function markSelection() {
  const field = $("message");
  if (field.selectionStart === field.selectionEnd) return showProblem("First select the private part of your message.");
  write(withMark(field.value, field.selectionStart, field.selectionEnd, $("kind").value));
}

function showWhatLeaves() {
  let parts = [];
  try {
    parts = parseFences($("message").value);
  } catch {
    // a marker is still being typed; sending reports what is wrong
  }
  const isLocal = $("privacy").value === "local", isMarked = (part) => part.private;
  const staysWhole = isLocal && isPrivate(); // as does everything after such a turn
  const isOpen = !parts.some(isMarked) && !(staysWhole && parts.length);
  $("other-privacy").hidden = isOpen;
  $("other-privacy").textContent = isLocal ? "Send a placeholder instead" : "Keep it on this device instead";
  if (isOpen) return $("leaves").replaceChildren();
  const seen = staysWhole ? [] : isLocal ? parts.slice(0, parts.findIndex(isMarked)) : parts;
  const pieces = seen.map((part) => (part.private ? marked(`[${part.kind ?? "PRIVATE"}]`) : part.text));
  $("leaves").replaceChildren("The server sees: ", ...(pieces.length ? pieces : ["nothing of this message"]), isLocal && pieces.length ? " … and nothing after it." : "");
}

function changePrivacy() {
  $("privacy").value = $("privacy").value === "local" ? "placeholder" : "local";
  $("privacy").dispatchEvent(new Event("change"));
  $("message").focus();
}

const marked = (text) => Object.assign(document.createElement("mark"), { textContent: text });

function showProblem(message) {
  $("problem").textContent = message;
}

function showExamples() {
  const examples = EXAMPLES.map((text) => button({ textContent: text }, () => send(text)));
  $("examples").append(...examples, button({ textContent: "Write a note with a private name" }, () => write(PRIVATE_EXAMPLE)));
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

// -- settings

const settings = () => ({
  mode: $("mode").value,
  privacy: $("privacy").value,
  maxTokens: $("max-tokens").valueAsNumber,
  temperature: $("temperature").valueAsNumber,
});

function restoreSettings() {
  $("mode").replaceChildren(...MODES.map((mode) => new Option(mode)));
  $("kind").replaceChildren(...KINDS.map((kind) => new Option(kind ? kind.toLowerCase() : "anything", kind)));
  for (const id of KEPT_SETTINGS) {
    const field = $(id), stored = history.read(`outrider ${id}`);
    if (stored !== null && field.type === "checkbox") field.checked = stored === "true";
    else if (stored !== null && (!field.options || [...field.options].some(({ value }) => value === stored))) field.value = stored;
    field.addEventListener("change", () => {
      history.write(`outrider ${id}`, field.type === "checkbox" ? field.checked : field.value);
      applySettings();
    });
  }
  tellOrigins(history.read("outrider who-wrote") === "true");
  applySettings();
}

function applySettings() {
  document.documentElement.dataset.appearance = $("appearance").value;
  showWhatLeaves();
}

/** Copies plain text unless "Copy the look too" is checked. */
function copy(event) {
  if ($("copy-tint").checked || event.target.matches?.("input, textarea")) return;
  event.clipboardData.setData("text/plain", getSelection().toString());
  event.preventDefault();
}

// -- drawers

const openDrawer = () => Object.keys(DRAWERS).find((id) => !$(id).hidden);

/** Opens a drawer, or closes it. Where it covers the conversation, only one is open, and nothing below it can be reached. */
function setDrawer(id, isOpen) {
  if (isOpen && NARROW.matches) for (const other of Object.keys(DRAWERS)) if (other !== id && !$(other).hidden) setDrawer(other, false);
  $(id).hidden = !isOpen;
  $(DRAWERS[id]).setAttribute("aria-expanded", String(isOpen));
  $("chat").inert = NARROW.matches && openDrawer() !== undefined;
  (isOpen ? $(id).querySelector(".close") : $(DRAWERS[id])).focus();
}

function watchDrawers() {
  for (const [id, opener] of Object.entries(DRAWERS)) {
    $(opener).addEventListener("click", () => setDrawer(id, $(id).hidden));
    $(id).querySelector(".close").addEventListener("click", () => setDrawer(id, false));
  }
  NARROW.addEventListener("change", () => ($("chat").inert = NARROW.matches && openDrawer() !== undefined));
}

// -- keys

function pressed(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  } else if (event.key.toLowerCase() === "p" && event.altKey) {
    event.preventDefault();
    markSelection();
  }
}

/** Closes what lies above the conversation, or else stops the answer. */
function escape() {
  if ($("link-card").matches(":popover-open") || $("key-dialog").open) return; // the browser closes them itself
  const drawer = openDrawer();
  if (drawer && ($(drawer).contains(document.activeElement) || $("chat").inert)) setDrawer(drawer, false);
  else stop();
}

/** Another conversation is open. */
function changed() {
  if ($("chat").inert) setDrawer(openDrawer(), false);
  showWhatLeaves();
  $("message").focus();
}

startChat({ settings, showProblem, askForKey, changed, giveBack: (written) => $("message").value || write(written) });
restoreSettings();
watchOrigins();
watchDrawers();
showExamples();
$("keep-history").checked = history.keeps();
$("keep-history").addEventListener("change", (event) => (history.keepFromNowOn(event.target.checked), list()));
$("forget-all").addEventListener("click", () => forget());
for (const id of ["new-conversation", "begin-anew"]) $(id).addEventListener("click", openNew);
$("who-wrote").addEventListener("click", () => {
  tellOrigins(!tellsOrigins());
  history.write("outrider who-wrote", tellsOrigins());
});
$("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
$("stop").addEventListener("click", stop);
$("mark-private").addEventListener("click", markSelection);
$("other-privacy").addEventListener("click", changePrivacy);
$("message").addEventListener("input", messageChanged);
$("message").addEventListener("keydown", pressed);
document.addEventListener("keydown", (event) => event.key === "Escape" && escape());
document.addEventListener("copy", copy);
watchLink(askForKey);
