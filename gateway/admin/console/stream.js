// The events of the gateway, for as long as the page is open: connected, lost, and connected again.

const SILENCE_MS = 5000; // figures come each second
const PAUSES_MS = [500, 1000, 2000, 3000];
const TOKEN = "slotgate-token";

/** A fetch with the operator's token, if one was given. */
export function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  return fetch(path, { cache: "no-store", ...options, headers: { ...options.headers, ...headers } });
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

/**
 * Listen for ever. `heard(name, data)` gets each event; `connected()` and `lost(why)` tell of the connection.
 * `refused()` is awaited where the token is missing or wrong.
 */
export async function listen({ heard, connected, lost, refused }) {
  for (let failures = 0; ; failures++) {
    let why = "the gateway closed the connection";
    const abort = new AbortController();
    let silence = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const response = await ask("admin/events", { signal: abort.signal });
      if (response.status === 401) {
        clearTimeout(silence);
        failures = -1;
        await refused();
        continue;
      }
      if (!response.ok) throw new Error(`the gateway answers ${response.status}`);
      connected();
      failures = 0;
      for await (const [name, data] of events(response.body)) {
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        heard(name, data);
      }
    } catch (error) {
      if (abort.signal.aborted) why = "the gateway is silent";
      else why = error instanceof TypeError ? "the gateway does not answer" : error.message;
    }
    clearTimeout(silence);
    lost(why);
    await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]));
  }
}

/** Server-sent events of a body; ours have one line of data each. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const found = /^event: (.*)\ndata: (.*)$/.exec(part);
      if (found) yield [found[1], JSON.parse(found[2])];
    }
  }
}
