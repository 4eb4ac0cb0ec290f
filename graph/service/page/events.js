// What happens in a run, told by server-sent events over fetch: an EventSource cannot send a key.

import { call, Problem } from "./api.js";

const SILENCE = 60_000; // ms; the server says something every 15 s
const LONGEST_WAIT = 10_000; // ms between two attempts

/**
 * Follow a run until it is over. A lost connection is made again, and goes on after the last event
 * that has come; no event is told twice.
 *
 * @param {string} id Of the run.
 * @param {AbortSignal} signal Ends it.
 * @param {(event: {number: number, name: string, data: Object}) => void} tell
 * @param {(connected: boolean) => void} connection Told when it is lost, and when it is back.
 * @throws {Problem} The server will not tell.
 */
export async function follow(id, { signal, tell, connection }) {
  let last = 0;
  let attempts = 0;
  for (;;) {
    let wait = 0;
    try {
      const opened = () => { if (attempts) connection(true); };
      for await (const event of stream(id, last, signal, opened)) {
        attempts = 0;
        if (event.number && event.number <= last) continue;
        last = Math.max(last, event.number);
        tell(event);
        if (event.name === "end" || event.name === "error") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status < 500 && error.status !== 429) throw error;
      wait = (error.retryAfter ?? 0) * 1000;
    }
    if (signal.aborted) return;
    connection(false);
    attempts += 1;
    await pause(Math.max(wait, Math.min(250 * 2 ** attempts, LONGEST_WAIT)), signal);
    if (signal.aborted) return;
  }
}

async function* stream(id, last, signal, opened) {
  const silence = new AbortController();
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = String(last);
  const response = await call(`/v1/runs/${encodeURIComponent(id)}/events`, {
    headers,
    signal: AbortSignal.any([signal, silence.signal]),
  });
  opened();
  let timer = setTimeout(() => silence.abort(), SILENCE);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parse = parser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE);
      yield* parse(value);
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** Return what turns pieces of an event stream into events, wherever the pieces are cut. */
export function parser() {
  let rest = "";
  let event = { number: 0, name: "message", data: [] };
  return function* parse(piece) {
    rest += piece;
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) {
          yield { ...event, data: JSON.parse(event.data.join("\n")) };
        }
        event = { number: 0, name: "message", data: [] };
        continue;
      }
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "id") event.number = Number(value) || 0;
      else if (field === "event") event.name = value;
      else if (field === "data") event.data.push(value);
    }
  };
}

/** Wait; less where the browser is online again. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      window.removeEventListener("online", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    window.addEventListener("online", end);
    signal.addEventListener("abort", end);
  });
}
