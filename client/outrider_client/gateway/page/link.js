// The link to the server: its pill and card in the header, the banner of an outage, its measurements as charts, and the
// controls of an emulated link.

import { StripChart } from "./chart.js";
import { announce } from "./elements.js";
import { call, events } from "./gateway.js";

const OUT = new Set(["offline", "resuming"]);
const RETRY_MS = 1000;
const WORDS = { connecting: "Connecting", online: "Online", offline: "Offline", resuming: "Resuming", closed: "No gateway" };
const MEANINGS = {
  connecting: "The gateway is looking for the server.",
  online: "The server checks the words as they come.",
  offline: "The server does not answer.",
  resuming: "The link is back, and the server checks what was written meanwhile.",
  closed: "The gateway does not answer: is it still running?",
};
const $ = (id) => document.getElementById(id);

const charts = {
  rtt_ms: new StripChart("Round trip", (value) => `${+value.toPrecision(3)} ms`),
  tokens_per_second: new StripChart("Speed", (value) => `${+value.toPrecision(3)} tokens/s`),
  tau: new StripChart("Tokens a reply of the server", (value) => `${+value.toPrecision(3)}`),
  bytes: new StripChart("Traffic", (value) => `${inBytes(value)}/s`),
};
const changed = new EventTarget();
let latest = { state: "connecting" };
let before = null; // the last sample: {at, bytes}

export const isOnline = () => latest.state === "online";

/** Calls `listener` with each change of the link's state. */
export function onLinkChange(listener) {
  changed.addEventListener("change", listener);
}

export function inBytes(count) {
  return count < 1000 ? `${count.toFixed(0)} B` : count < 1e6 ? `${+(count / 1000).toPrecision(3)} kB` : `${+(count / 1e6).toPrecision(3)} MB`;
}

/** Follows the link while the page is in sight, and never returns. Awaits `onKey` when the gateway needs a key. */
export async function watchLink(onKey) {
  $("charts").append(...Object.values(charts).map((chart) => chart.element));
  for (const id of ["cut", "banner-restore"]) $(id).addEventListener("click", () => changeLink({ cut: !latest.emulated.cut }));
  $("profile").addEventListener("change", () => changeLink({ profile: $("profile").value }));
  $("link-card").addEventListener("toggle", placeCard);
  for (;;) {
    await visible();
    const controller = new AbortController();
    // A tab in the background would have the server probed every second, and a phone's radio never sleep.
    document.addEventListener("visibilitychange", () => document.hidden && controller.abort(), { signal: controller.signal });
    try {
      for await (const report of events(await call("outrider/link", { signal: controller.signal }))) show(report);
    } catch (error) {
      if (controller.signal.aborted) continue;
      if (error.status === 401) await onKey(error);
      showState({ ...latest, state: "closed" });
    }
    controller.abort(); // its listener
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function visible() {
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

async function changeLink(body) {
  try {
    await call("outrider/link", { body });
  } catch (error) {
    $("problem").textContent = error.message;
  }
}

/** Puts the card below its pill: a popover lies above the page, and knows nothing of it. */
function placeCard() {
  const pill = $("link-pill").getBoundingClientRect(), width = $("link-card").offsetWidth;
  $("link-card").style.top = `${pill.bottom + 8}px`;
  $("link-card").style.left = `${Math.max(8, Math.min(pill.left, document.documentElement.clientWidth - width - 8))}px`;
}

function show(report) {
  showState(report);
  showEnds(report);
  showEmulation(report.emulated);
  const now = performance.now(), bytes = report.bytes_up + report.bytes_down;
  if (before && now - before.at < 500) return; // a change of state between two samples
  const rate = before ? (1000 * Math.max(bytes - before.bytes, 0)) / (now - before.at) : null;
  before = { at: now, bytes };
  const isOut = OUT.has(report.state);
  for (const name of ["rtt_ms", "tokens_per_second", "tau"]) charts[name].add(isOut ? null : (report[name] || null), isOut);
  charts.bytes.add(rate, isOut);
}

function showState(report) {
  const old = latest;
  latest = report;
  const { state, rtt_ms: rtt, mismatch } = report, isUp = !OUT.has(state) && state !== "closed";
  $("link-pill").dataset.state = mismatch ? "mismatch" : state;
  $("link-word").textContent = mismatch ? "Other models" : WORDS[state];
  $("link-rtt").textContent = isUp && rtt ? `${rtt.toFixed(0)} ms` : "";
  $("link-pill").dataset.bars = !isUp || !rtt ? 0 : rtt < 100 ? 3 : rtt < 250 ? 2 : 1;
  $("link-meaning").textContent = mismatch ? "The server has other models than this device, and refuses every request." : MEANINGS[state];
  $("banner").hidden = isUp && !mismatch;
  $("banner-text").textContent = bannerText(report);
  if (old.state === state) return;
  announce(`${WORDS[state]}. ${MEANINGS[state]}`);
  changed.dispatchEvent(new Event("change"));
}

function bannerText({ state, mismatch, drafter }) {
  if (mismatch) return `The server has other models than this device: ${mismatch}`;
  if (state === "closed") return MEANINGS.closed;
  if (state === "resuming") return MEANINGS.resuming;
  if (drafter === "none") return "Offline: answers go on when the link is back";
  return "Offline: your device writes alone; the server checks its words when the link is back";
}

function showEnds({ model, server, drafter, rtt_ms: rtt, mode, state, bytes_up: up, bytes_down: down }) {
  $("model-name").textContent = $("greeting-model").textContent = model;
  $("greeting-server").textContent = server;
  $("greeting-link").textContent = state !== "online" ? ", which does not answer now" : rtt ? `, ${rtt.toFixed(0)} ms away` : "";
  $("greeting-drafter").textContent = drafter === "none" ? "This device drafts nothing, and waits where the link breaks." : `This device drafts along (${drafter}), and writes on alone where the link breaks.`;
  $("card-server").textContent = server;
  $("card-rtt").textContent = rtt ? `${rtt.toFixed(0)} ms` : "–";
  $("card-mode").textContent = mode ?? "–";
  $("card-bytes").textContent = `${inBytes(up)} sent, ${inBytes(down)} received`;
}

function showEmulation(emulated) {
  $("emulation").hidden = !emulated;
  $("real-link").hidden = !!emulated;
  $("banner-restore").hidden = !emulated?.cut;
  if (!emulated) return;
  $("cut").setAttribute("aria-pressed", String(emulated.cut));
  $("cut").textContent = emulated.cut ? "Restore the link" : "Cut the link";
  const names = emulated.profiles ?? [emulated.profile];
  if ($("profile").options.length !== names.length) $("profile").replaceChildren(...names.map((name) => new Option(name)));
  if (document.activeElement !== $("profile")) $("profile").value = emulated.profile;
}
