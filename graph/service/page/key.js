// The access key, if the server requires one. We keep it in this tab only, and never in the URL.

import { byId } from "./dom.js";

const NAME = "fairqr-key";
let asking = null;

/** The headers with the key. */
export function authorization() {
  const key = sessionStorage.getItem(NAME);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/**
 * Ask for a key; several who ask at once get the same answer.
 *
 * @param {string} why A sentence.
 * @returns {Promise<boolean>} Whether one was given.
 */
export function askForKey(why) {
  asking ??= shown(why).finally(() => { asking = null; });
  return asking;
}

/** Show the button that changes the key. */
export function offerKey() {
  byId("key-button").hidden = false;
}

/** Wire the button; `changed` is called after another key was given. */
export function setUpKey(changed) {
  byId("key-button").addEventListener("click", async () => {
    if (await askForKey("Use another access key. It stays in this tab until you close it.")) {
      changed();
    }
  });
}

function shown(why) {
  const dialog = byId("key-dialog");
  const field = byId("key");
  byId("key-why").textContent = why;
  field.value = "";
  offerKey();
  return new Promise((resolve) => {
    const listening = new AbortController();
    const end = (given) => {
      listening.abort();
      dialog.close();
      resolve(given);
    };
    const { signal } = listening;
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      // A header holds nothing but printable ASCII; a key never has more.
      sessionStorage.setItem(NAME, field.value.replace(/[^\x21-\x7e]/g, ""));
      end(true);
    }, { signal });
    byId("key-cancel").addEventListener("click", () => end(false), { signal });
    dialog.addEventListener("cancel", () => end(false), { signal });
    dialog.showModal();
    field.focus();
  });
}
