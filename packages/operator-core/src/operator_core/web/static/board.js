// The board keeps itself fresh: rows are patched in place, so that neither scroll position nor focus is lost.

import { announce, refreshTimes, reveal, stream } from "./app.js";

const PAUSE = 400; // ms, to gather changes that come together
const LEAST = 1500; // ms between two looks
const CALM = 4000; // ms, when all that is new is what agents do
let timer = 0;
let due = 0;
let looked = 0;
let busy = false;
let again = false;

const list = () => document.getElementById("list");

function plan(event) {
  const least = event?.data && JSON.parse(event.data).kind === "activity" ? CALM : LEAST;
  const at = Math.max(Date.now() + PAUSE, looked + least) + Math.random() * 200;
  if (timer && at >= due) return;
  clearTimeout(timer);
  due = at;
  timer = setTimeout(look, at - Date.now());
}

async function look() {
  timer = 0;
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  looked = Date.now();
  const address = location.href;
  try {
    const answer = await fetch(address, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
    if (answer.redirected || answer.status === 401) {
      location.reload();
      return;
    }
    if (answer.ok && address === location.href) {
      patch(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
  } catch {
    // The server is away; the stream comes back and says what changed.
  } finally {
    busy = false;
    if (again) {
      again = false;
      plan();
    }
  }
}

function patch(fresh) {
  swap("board-head", fresh);
  const before = document.querySelector("#list tbody");
  const after = fresh.querySelector("#list tbody");
  if (!before || !after) {
    swap("list", fresh);
  } else {
    rows(before, after);
    const pager = document.querySelector("#list .pager");
    const next = fresh.querySelector("#list .pager");
    if (pager && next) pager.replaceWith(next);
    else if (next) list().append(next);
    else pager?.remove();
  }
  refreshTimes();
  document.body.dispatchEvent(new CustomEvent("board:changed"));
}

function swap(id, fresh) {
  const old = document.getElementById(id);
  const made = fresh.getElementById(id);
  if (!old || !made || old.outerHTML === made.outerHTML) return;
  keepFocus(() => old.replaceWith(made));
  reveal(made);
}

// An element that moves or is replaced loses the focus; the same link in the new one gets it back.
function keepFocus(change) {
  const focused = document.activeElement;
  const row = focused?.closest?.("tr[id]")?.id;
  const href = focused?.getAttribute?.("href");
  const x = scrollX;
  const y = scrollY;
  change();
  if (document.activeElement === focused) return;
  const root = row ? document.getElementById(row) : document.getElementById("board");
  if (href) root?.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
  scrollTo(x, y);
}

export function rows(before, after) {
  const place = (row) => row.getBoundingClientRect().top;
  const seen = [...before.rows].filter((row) => row.id.startsWith("t-") && place(row) >= 0 && place(row) < innerHeight);
  const held = seen.filter((row) => row.contains(document.activeElement));
  const tops = (held.length ? held : seen).map((row) => [row, place(row)]);
  keepFocus(() => {
    const old = new Map([...before.rows].map((row) => [row.id, row]));
    let next = before.firstElementChild;
    for (const made of [...after.rows]) {
      const row = old.get(made.id);
      if (!row) {
        made.classList.add("fresh");
        before.insertBefore(made, next);
        continue;
      }
      old.delete(made.id);
      update(row, made);
      if (row === next) next = row.nextElementSibling;
      else before.insertBefore(row, next);
    }
    for (const [id, row] of old) {
      if (row === next) next = row.nextElementSibling;
      row.remove();
      if (row.contains(document.activeElement)) announce(`Ticket ${id.slice(2)} is no longer in this list`);
    }
  });
  // What a person reads stays where it is, whatever came above it: most of the rows in sight, or the chosen one.
  const shifts = tops.filter(([row]) => row.isConnected).map(([row, top]) => place(row) - top);
  if (scrollY > 0 && shifts.length) scrollBy(0, shifts.sort((a, b) => a - b)[shifts.length >> 1]);
}

function update(row, made) {
  const state = row.querySelector(".c-state");
  const changed = state && state.textContent !== made.querySelector(".c-state")?.textContent;
  if (row.className.replace(/ ?fresh/, "") !== made.className) row.className = made.className;
  [...row.cells].forEach((cell, i) => {
    const next = made.cells[i];
    if (next && plain(cell) !== plain(next)) cell.replaceWith(next);
  });
  if (changed) {
    row.classList.add("fresh");
    announce(`Ticket ${row.id.slice(2)}: ${row.querySelector(".c-state").textContent.trim()}`);
  }
}

// Relative times go on by themselves and are no change.
function plain(cell) {
  return cell.innerHTML.replace(/(<time [^>]*>)[^<]*/g, "$1");
}

export function start() {
  stream("/api/v1/stream", { ticket: plan, reset: plan }, { opened: plan });
}
