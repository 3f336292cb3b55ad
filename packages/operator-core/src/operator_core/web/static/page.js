// A page keeps itself fresh, unless somebody is typing into it: then it says that there is something new.
// <div data-live-page="/address" data-ticket="7">: only what happens to that ticket counts; without it everything does.

import { announce, refreshTimes, stream } from "./app.js";

const LEAST = 1500; // ms between two looks
let timer = 0;
let looked = 0;

const page = () => document.querySelector("[data-live-page]");

function plan() {
  timer ||= setTimeout(look, Math.max(300, looked + LEAST - Date.now()));
}

async function look() {
  timer = 0;
  looked = Date.now();
  const old = page();
  try {
    const answer = await fetch(old.dataset.livePage, { headers: { "HX-Request": "true" } });
    if (answer.status === 401) location.reload();
    if (!answer.ok) return;
    const made = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live-page]");
    if (!made || same(old, made)) return;
    if (typing(old)) offer(made);
    else show(made);
  } catch {
    // The server is away; the stream comes back and says what changed.
  }
}

// The same but for relative times and the keys of forms.
function same(one, other) {
  const plain = (element) =>
    element.innerHTML
      .replace(/(<time [^>]*>)[^<]*/g, "$1")
      .replace(/<input type="hidden"[^>]*>/g, "")
      .replace(/ open=""| hidden=""/g, "");
  return plain(one) === plain(other);
}

function typing(root) {
  const fields = [...root.querySelectorAll("textarea, input:not([type=hidden]):not([type=checkbox])")];
  return fields.some((field) => field.value !== field.defaultValue || field === document.activeElement);
}

function offer(made) {
  document.querySelector(".changed")?.remove();
  const bar = document.createElement("p");
  bar.className = "changed";
  bar.setAttribute("role", "status");
  const button = document.createElement("button");
  button.textContent = "Show it";
  button.addEventListener("click", () => show(made));
  bar.append("Something has changed. What you typed is still here.", button);
  page().before(bar);
}

function show(made) {
  const old = page();
  document.querySelector(".changed")?.remove();
  const opened = new Set([...old.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
  const closed = new Set([...old.querySelectorAll("details:not([open]) > summary")].map((s) => s.textContent));
  for (const details of made.querySelectorAll("details")) {
    const text = details.querySelector("summary").textContent;
    if (opened.has(text)) details.open = true;
    else if (closed.has(text)) details.open = false;
  }
  const texts = new Map([...old.querySelectorAll("textarea[id], input[id]")].map((field) => [field.id, field.value]));
  const href = document.activeElement?.getAttribute?.("href");
  const y = scrollY;
  old.replaceWith(made);
  for (const field of made.querySelectorAll("textarea[id], input[id]")) field.value = texts.get(field.id) || field.value;
  if (href) made.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
  for (const button of made.querySelectorAll("[data-copy]")) button.hidden = false;
  refreshTimes(made);
  scrollTo(scrollX, y);
  announce("The page has changed");
  document.body.dispatchEvent(new CustomEvent("board:changed"));
}

export function start() {
  const ticket = page().dataset.ticket;
  const changed = (event) => {
    if (!ticket || String(JSON.parse(event.data).id) === ticket) plan();
  };
  stream("/api/v1/stream", { ticket: changed, reset: plan }, { opened: plan });
}
