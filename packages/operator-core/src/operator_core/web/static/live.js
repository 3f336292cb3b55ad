// A session while it happens. The stream only says that there is something new; what is shown is asked for by sequence
// number, as the server renders it. So nothing is lost, nothing comes twice, and there is one place that makes HTML.
import { announce, refreshTimes, stream } from "./app.js";

const $ = (selector, root = document) => root.querySelector(selector);
const MOST = 1000;
const PAGE = 100;

const list = $("#steps");
const output = $("#output");
const follow = $("#follow");
const base = `/sessions/${encodeURIComponent(list.dataset.session)}`;
let last = Number(list.dataset.last);
let following = false;
let over = false;

async function fragment(path) {
  const answer = await fetch(base + path, { headers: { Accept: "text/html" }, redirect: "error" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  const holder = document.createElement("template");
  holder.innerHTML = await answer.text();
  return holder.content;
}

// One request at a time for each part; what comes meanwhile makes for one more.
function keeper(work, pause) {
  let busy = false;
  let again = false;
  return async function run() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      do {
        again = false;
        await work();
        if (pause) await new Promise((done) => setTimeout(done, pause));
      } while (again);
    } catch {
      setTimeout(run, 1500);
    } finally {
      busy = false;
    }
  };
}

// ---- following

function toEnd() {
  scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

function setFollowing(on) {
  following = on;
  follow.setAttribute("aria-pressed", String(on));
  if (on) toEnd();
}

function atEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
}

function keepPlace(change) {
  if (following) {
    change();
    toEnd();
    return;
  }
  change();
}

// ---- parts

function add(rows) {
  $("#nothing")?.remove();
  for (const row of rows) {
    last = Number(row.dataset.seq);
    list.append(row);
    const shown = output.firstElementChild;
    if (shown && row.classList.contains("k-tool-result") && row.dataset.call === shown.dataset.call) {
      output.replaceChildren();
    }
  }
  if (following && list.childElementCount > MOST) forget();
  list.dataset.last = String(last);
  refreshTimes(list);
}

// A page that is open for days keeps its newest entries; the others are one click away.
function forget() {
  while (list.childElementCount > MOST) list.firstElementChild.remove();
  const first = Number(list.firstElementChild.dataset.seq);
  const earlier = $("#earlier");
  const link = $("a", earlier);
  link.href = `${base}?at=${Math.max(0, first - Number(earlier.dataset.window))}`;
  link.textContent = `${first.toLocaleString("en")} earlier entries`;
  earlier.hidden = false;
}

const entries = keeper(async () => {
  let rows;
  do {
    const part = await fragment(`/rows?after=${last}&limit=${PAGE}`);
    rows = [...part.querySelectorAll("li.step")].filter((row) => Number(row.dataset.seq) > last);
    if (rows.length) keepPlace(() => add(rows));
  } while (rows.length === PAGE);
}, 0);

const side = keeper(async () => {
  const part = await fragment("/side");
  const now = $("#side-now", part);
  const was = $("#side-now");
  $("#status").replaceChildren(...$("template", now).content.cloneNode(true).children);
  const open = [...was.querySelectorAll("details")].map((fold) => fold.open);
  [...now.querySelectorAll("details")].forEach((fold, at) => (fold.open = open[at] ?? fold.open));
  const changed = now.dataset.asks !== was.dataset.asks || now.dataset.status !== was.dataset.status;
  if (!was.contains(document.activeElement)) was.replaceWith(now);
  else Object.assign(was.dataset, now.dataset);
  if (changed) await refreshComposer();
}, 1000);

// The session began to wait for an answer, goes on, or has ended: there is something else to say to it now.
async function refreshComposer() {
  const answer = await fetch(base, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const draft = $("#say")?.value;
  $("#end").replaceWith($("#end", page) ?? document.createElement("div"));
  if (draft && $("#say")) $("#say").value = draft;
  for (const form of document.querySelectorAll("form[data-quick]")) form.addEventListener("submit", send);
}

const running = keeper(async () => {
  const part = await fragment("/output");
  const shown = $(".running", part);
  const results = shown ? [...list.querySelectorAll("li.k-tool-result")].slice(-20) : [];
  const done = results.some((row) => row.dataset.call === shown.dataset.call);
  keepPlace(() => output.replaceChildren(...(shown && !done ? [shown] : [])));
}, 250);

async function ended() {
  if (over) return;
  over = true;
  close();
  await entries();
  output.replaceChildren();
  follow.hidden = true;
  await side();
  announce("The session has ended");
}

// ---- acting

async function send(event) {
  event.preventDefault();
  const form = event.target;
  const field = $("textarea", form);
  const button = $("button", form);
  const unsent = $(".unsent", form);
  button.disabled = true;
  unsent.hidden = true;
  try {
    let answer;
    try {
      answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    } catch {
      // Sent again it has the same key, so that it is said once even if only the answer was lost.
      answer = null;
    }
    if (!answer || answer.status === 401 || new URL(answer.url).pathname === "/login") {
      unsent.textContent = answer ? unsent.dataset.out : unsent.dataset.away;
      unsent.hidden = false;
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    field.value = "";
    const key = $("input[name=key]", form);
    key.value = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
    announce("Sent");
    setFollowing(true);
  } catch {
    // The page that the server answers with says why.
    form.removeEventListener("submit", send);
    form.submit();
  } finally {
    button.disabled = false;
    delete form.dataset.sent;
  }
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select, dialog")) {
    if (event.key === "Enter" && !event.shiftKey && event.target.closest("form[data-quick]")) {
      event.preventDefault();
      event.target.form.requestSubmit();
    }
    return;
  }
  if (event.key === "f" && !follow.hidden) setFollowing(!following);
  if (event.key === "m" && $("#say")) {
    event.preventDefault();
    $("#say").focus();
  }
}

// ---- start

document.addEventListener("keydown", pressed);
let close = () => {};
if ("live" in list.dataset) {
  follow.hidden = false;
  follow.addEventListener("click", () => setFollowing(!following));
  let touched = scrollY;
  addEventListener("scroll", () => {
    // Whoever scrolls up wants to read; whoever comes back to the end wants to follow.
    if (following && scrollY < touched - 4) setFollowing(false);
    else if (!following && scrollY > touched && atEnd()) setFollowing(true);
    touched = scrollY;
  }, { passive: true });
  for (const form of document.querySelectorAll("form[data-quick]")) form.addEventListener("submit", send);
  close = stream(`/api/v1${base}/stream`, {
    entry: (event) => Number(event.lastEventId) > last && entries(),
    output: running,
    state: side,
    end: ended,
  }, { after: last });
  if (!location.hash) setFollowing(true);
}
