// The link's state, its measurements as strip charts, and the controls of an emulated link.

import { call, events } from "./gateway.js";
import { StripChart } from "./chart.js";

const OUT = new Set(["offline", "resuming"]);
const RETRY_MS = 1000;
const $ = (id) => document.getElementById(id);

const charts = {
  rtt_ms: new StripChart("R", (value) => `${value.toFixed(0)} ms`),
  tau: new StripChart("τ, tokens per verdict", (value) => value.toFixed(2)),
  tokens_per_second: new StripChart("tokens/s", (value) => value.toFixed(1)),
  bytes: new StripChart("bytes/s", inBytes),
};
let before = null;

export function inBytes(count) {
  return count < 1000 ? `${count.toFixed(0)} B` : count < 1e6 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** Follows the link while the page is in sight, and never returns. Awaits `onKey` when the gateway needs a key. */
export async function watchLink(onKey) {
  $("charts").append(...Object.values(charts).map((chart) => chart.element));
  $("cut").addEventListener("click", () => changeLink({ cut: $("cut").getAttribute("aria-pressed") !== "true" }));
  $("profile").addEventListener("change", () => changeLink({ profile: $("profile").value }));
  for (;;) {
    await visible();
    const controller = new AbortController();
    // A tab in the background would have the server probed every second, and a phone's radio never sleep.
    document.addEventListener("visibilitychange", () => document.hidden && controller.abort(), { signal: controller.signal });
    try {
      for await (const state of events(await call("outrider/link", { signal: controller.signal }))) show(state);
    } catch (error) {
      if (controller.signal.aborted) continue;
      if (error.status === 401) await onKey(error);
      showState("closed", "no gateway");
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

function show(state) {
  showState(state.state, state.mode ? `${state.state}, ${state.mode}` : state.state);
  showEmulation(state.emulated);
  const now = performance.now(), bytes = state.bytes_up + state.bytes_down;
  if (before && now - before.at < 500) return; // a change of state between two samples
  const rate = before ? (1000 * Math.max(bytes - before.bytes, 0)) / (now - before.at) : null;
  before = { at: now, bytes };
  const isOut = OUT.has(state.state);
  for (const name of ["rtt_ms", "tau", "tokens_per_second"]) charts[name].add(isOut ? null : (state[name] || null), isOut);
  charts.bytes.add(rate, isOut);
}

function showState(state, word) {
  if ($("link-word").textContent === word) return;
  $("link-state").dataset.state = state;
  $("link-word").textContent = word;
}

function showEmulation(emulated) {
  $("emulation").hidden = !emulated;
  if (!emulated) return;
  $("cut").setAttribute("aria-pressed", String(emulated.cut));
  $("cut").textContent = emulated.cut ? "Restore the link" : "Cut the link";
  const names = emulated.profiles ?? [emulated.profile];
  if ($("profile").options.length !== names.length) $("profile").replaceChildren(...names.map((name) => new Option(name)));
  if (document.activeElement !== $("profile")) $("profile").value = emulated.profile;
}
