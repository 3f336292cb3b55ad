// What every page has: keys, relative times, theme, copying. Nothing that is needed for reading.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// ---- times

const UNITS = [[31536000, "y"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function ago(then, now = Date.now()) {
  const seconds = (now - then) / 1000;
  if (Math.abs(seconds) < 10) return "just now";
  const whole = Math.abs(seconds);
  // What is given for 30 days says so, and not 29 a second later.
  const nearly = seconds > 0 ? 0 : 0.05;
  const [size, unit] = UNITS.find(([s]) => whole >= s * (1 - nearly));
  const short = `${Math.floor(whole / size + nearly)} ${unit}`;
  return seconds > 0 ? `${short} ago` : `in ${short}`;
}

export function refreshTimes(root = document) {
  for (const element of $$("time[datetime]:not([data-fixed])", root)) {
    const text = ago(Date.parse(element.dateTime));
    if (element.textContent !== text) element.textContent = text;
  }
}

// ---- what a screen reader is told

export function announce(text) {
  $("#announce").textContent = text;
}

// ---- a stream that rests while nobody looks, so that many tabs do not use up the browser's connections

// `opened` is called whenever it begins: something may have happened since the page was made, or since it was cut off.
export function stream(url, handlers, { after = null, opened = () => {} } = {}) {
  let source = null;
  let last = after;
  let lost = 0;
  // What is on the screen may be old then, and must not look as if it were not.
  const live = (yes) => {
    if (yes) {
      clearTimeout(lost);
      lost = 0;
      $("#offline").hidden = true;
    } else {
      lost ||= setTimeout(() => ($("#offline").hidden = document.hidden), 4000);
    }
  };
  const open = () => {
    if (source || document.hidden) return;
    const address = new URL(url, location.href);
    if (last !== null) address.searchParams.set("after", last);
    source = new EventSource(address);
    live(false);
    source.onopen = () => {
      live(true);
      opened();
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handle(event);
      });
    }
    source.onerror = () => {
      live(false);
      // A refusal closes for good; EventSource itself comes back after a lost connection.
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(open, 3000 + Math.random() * 4000);
      }
    };
  };
  const close = () => {
    clearTimeout(lost);
    lost = 0;
    source?.close();
    source = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
  return close;
}

// ---- keys

function rows() {
  return $$("[data-row]").filter((row) => row.offsetParent !== null);
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  handle(next)?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// What a row is opened with; where there is no link to it, what can be done with it.
function handle(row) {
  return $("a.go, a[data-open]", row) ?? $("a", row) ?? $("summary, button", row);
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  o: () => {
    const row = rows().find((one) => one.contains(document.activeElement));
    if (row) handle(row)?.click();
  },
  n: () => {
    const place = $("#keys [data-new]");
    if (place) location.assign(place.dataset.new);
  },
  "/": () => {
    const field = $("#q");
    field?.focus();
    field?.select();
  },
  "?": () => $("#keys").showModal(),
};

let going = 0;

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const field = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if ($("dialog[open]")) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = $(`.places [data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
      return;
    }
  }
  if (event.key === "g") {
    going = Date.now();
    return;
  }
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
}

// ---- theme

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
}

// ---- start

// What is chosen in a list that goes on beyond the edge is in sight.
export function reveal(root = document) {
  for (const chosen of $$(".places [aria-current], .chips [aria-current]", root)) {
    const list = chosen.parentElement;
    list.scrollLeft = chosen.offsetLeft - list.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2;
  }
}

function prepare(root = document) {
  refreshTimes(root);
  for (const button of $$("[data-copy], #theme, #help", root)) button.hidden = false;
}

document.addEventListener("keydown", pressed);
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.previousElementSibling.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
    announce("Copied");
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "press Ctrl+C";
  }
  setTimeout(() => (button.textContent = "copy"), 1600);
});
// One click is one act: a second one while the first is under way does nothing.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
});
addEventListener("pageshow", () => $$("form[data-sent]").forEach((form) => delete form.dataset.sent));
document.addEventListener("htmx:afterSettle", (event) => prepare(event.target));
$("#theme")?.addEventListener("click", toggleTheme);
$("#help")?.addEventListener("click", () => $("#keys").showModal());
setInterval(() => document.hidden || refreshTimes(), 15000);
document.documentElement.classList.add("js");
prepare();
reveal();
// The numbers beside the places come later, and need room once htmx has settled them; whoever moves the list decides.
let moved = false;
for (const event of ["pointerdown", "touchstart", "wheel"]) {
  $(".places")?.addEventListener(event, () => (moved = true), { passive: true });
}
document.addEventListener("htmx:oobAfterSwap", () => moved || setTimeout(() => reveal(), 60));

if ($("[data-live-page]")) import("./page.js").then((page) => page.start());
if ($("#board[data-live]")) import("./board.js").then((board) => board.start());
