// Calls to the gateway, with its API key if it needs one.

const PLACE = "outrider key";
let key = "";
try {
  key = sessionStorage.getItem(PLACE) ?? "";
} catch {
  // a browser may forbid it: the page then asks again each time
}

/** Uses this key until the tab is closed. */
export function useKey(given) {
  key = given;
  try {
    sessionStorage.setItem(PLACE, given);
  } catch {
    // as above
  }
}

export const hasKey = () => key !== "";

export class GatewayError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Throws GatewayError for an error response, TypeError if there is none. */
export async function call(path, { body, signal } = {}) {
  const headers = { "content-type": "application/json" };
  if (/[^\x20-\x7e\xa0-\xff]/.test(key)) throw new GatewayError(401, "No key has such characters.");
  if (key) headers.authorization = `Bearer ${key}`;
  const method = body === undefined ? "GET" : "POST";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (!response.ok) throw new GatewayError(response.status, await messageOf(response));
  return response;
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The gateway answered with status ${response.status}.`;
  }
}

/** Yields the objects of a stream of server-sent events, up to [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffered += value.replaceAll("\r", "");
    const whole = buffered.split("\n\n");
    buffered = whole.pop();
    for (const event of whole) {
      const lines = event.split("\n").filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
