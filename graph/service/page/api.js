// Requests to the service, and the problems that it answers.

import { askForKey, authorization } from "./key.js";

/** A problem document of the service (RFC 9457). */
export class Problem extends Error {
  constructor(problem, status = 0, retryAfter = 0) {
    super(problem.detail || problem.title || "The server could not do this.");
    this.problem = problem;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The server did not respond. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached. Check that it runs, and try again.");
  }
}

/**
 * Send a request, and ask for an access key where the server wants one.
 *
 * @returns {Promise<Response>} A successful response.
 * @throws {Problem|Unreachable} One did not; an aborted request throws its AbortError.
 */
export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  for (;;) {
    const own = authorization();
    const response = await sent(path, {
      method,
      signal,
      cache: "no-store",
      headers: {
        Accept: "application/json",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...own,
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (response.ok) return response;
    const problem = await problemOf(response);
    // Another key was given meanwhile.
    if (problem.status === 401 && own.Authorization !== authorization().Authorization) continue;
    const why = problem.status === 401 && own.Authorization
      ? `${problem.message} Give another key.`
      : "This server asks for an access key. It stays in this tab until you close it.";
    if (problem.status !== 401 || !(await askForKey(why))) throw problem;
  }
}

/** The whole address of a path of the service, which may lie below a path of another server. */
export const address = (path) => new URL(path.slice(1), document.baseURI).href;

/** Send a request, and return the object of the answer. */
export async function json(path, options) {
  const response = await call(path, options);
  return response.status === 204 ? null : response.json();
}

async function sent(path, options) {
  try {
    return await fetch(address(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
}

async function problemOf(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    problem = { title: `The server answered ${response.status}.` };
  }
  const wait = Number(response.headers.get("Retry-After"));
  return new Problem(problem ?? {}, response.status, Number.isFinite(wait) ? wait : 0);
}
