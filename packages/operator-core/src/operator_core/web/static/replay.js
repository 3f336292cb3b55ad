// A session step by step. Entries are asked for in pages of a hundred, as the server renders them; what lies behind the
// current one is hidden, not gone.
import { refreshTimes } from "./app.js";

const $ = (selector, root = document) => root.querySelector(selector);
const PAGE = 100;
const KEPT = 12;
const LONGEST_MS = 4000;
const deck = $("#deck");
if (deck) start();

function start() {
  const base = `/sessions/${encodeURIComponent(deck.dataset.session)}`;
  const head = Number(deck.dataset.head);
  const list = $("#steps");
  const scrub = $("#scrub");
  const play = $("#play");
  const speed = $("#speed");
  const pages = new Map();
  let at = Number(deck.dataset.at);
  let shown = "";
  let playing = false;
  let timer = 0;
  let asked = 0;

  function page(number) {
    if (!pages.has(number)) {
      const rows = fetch(`${base}/rows?after=${number * PAGE - 1}&limit=${PAGE}`, { redirect: "error" })
        .then((answer) => {
          if (!answer.ok) throw new Error(String(answer.status));
          return answer.text();
        })
        .then((text) => {
          const holder = document.createElement("template");
          holder.innerHTML = text;
          return [...holder.content.querySelectorAll("li.step")];
        });
      rows.catch(() => pages.delete(number));
      pages.set(number, rows);
      for (const old of pages.keys()) {
        if (pages.size <= KEPT) break;
        if (Math.abs(old - number) > 2) pages.delete(old);
      }
    } else {
      const rows = pages.get(number);
      pages.delete(number);
      pages.set(number, rows);
    }
    return pages.get(number);
  }

  async function show(to, { keep = false } = {}) {
    at = Math.max(0, Math.min(head, to));
    const turn = ++asked;
    scrub.value = String(at);
    $("#where").textContent = `${at.toLocaleString("en")} of ${head.toLocaleString("en")}`;
    const number = Math.floor(at / PAGE);
    let rows;
    try {
      rows = (await Promise.all(number > 0 ? [page(number - 1), page(number)] : [page(number)])).flat();
    } catch {
      $("#where").textContent = "The server cannot be reached; try again.";
      pause();
      return;
    }
    // A later wish has overtaken this one.
    if (turn !== asked) return;
    const key = `${number}`;
    if (shown !== key) {
      list.replaceChildren(...rows);
      shown = key;
      refreshTimes(list);
    }
    let now = null;
    for (const row of rows) {
      const seq = Number(row.dataset.seq);
      row.hidden = seq > at;
      row.classList.toggle("now", seq === at);
      if (seq === at) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
      if (seq === at) now = row;
    }
    const last = rows.at(-1);
    if (now) {
      const stamp = $("time", now).getAttribute("title");
      $("#where").textContent += `, ${stamp}`;
      now.scrollIntoView({ block: "end", behavior: "instant" });
      // Room below, so that the current entry is not at the very edge.
      scrollBy({ top: 40, behavior: "instant" });
    }
    $("#back").href = `?at=${Math.max(0, at - 1)}`;
    $("#ahead").href = `?at=${Math.min(head, at + 1)}`;
    if (!keep) remember();
    if (last && at % PAGE > PAGE / 2 && at + PAGE / 2 < head) page(number + 1);
  }

  let remembering = 0;
  function remember() {
    clearTimeout(remembering);
    remembering = setTimeout(() => history.replaceState(null, "", `?at=${at}`), 250);
  }

  // ---- playing

  function pause() {
    playing = false;
    clearTimeout(timer);
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }

  async function pace() {
    if (!playing) return;
    if (at >= head) {
      pause();
      return;
    }
    const rows = await Promise.all([page(Math.floor(at / PAGE)), page(Math.floor((at + 1) / PAGE))]).catch(() => null);
    if (!rows || !playing) return pause();
    const time = (seq) => Number(rows.flat().find((row) => Number(row.dataset.seq) === seq)?.dataset.at ?? 0);
    const wait = Math.min(LONGEST_MS, Math.max(0, time(at + 1) - time(at))) / Number(speed.value);
    timer = setTimeout(async () => {
      await show(at + 1);
      pace();
    }, Math.max(16, wait));
  }

  function toggle() {
    if (playing) return pause();
    playing = true;
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    if (at >= head) at = -1;
    pace();
  }

  function go(to) {
    pause();
    show(to);
  }

  // ---- controls

  play.addEventListener("click", toggle);
  scrub.addEventListener("input", () => go(Number(scrub.value)));
  deck.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.id === "back") go(at - 1);
    else if (link.id === "ahead") go(at + 1);
    else go(Number(link.dataset.to));
  });

  function mark(label) {
    const link = [...deck.querySelectorAll("a[data-to]")].find((one) => one.textContent.trim() === label);
    if (link) go(Number(link.dataset.to));
  }

  function faster(by) {
    const next = speed.options[speed.selectedIndex + by];
    if (next) speed.value = next.value;
  }

  const KEYS = {
    " ": toggle,
    ArrowLeft: (event) => go(at - (event.shiftKey ? 10 : 1)),
    ArrowRight: (event) => go(at + (event.shiftKey ? 10 : 1)),
    Home: () => go(0),
    End: () => go(head),
    c: () => mark("first change"),
    e: () => mark("first error"),
    v: () => mark("verdict"),
    "<": () => faster(-1),
    ">": () => faster(1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("textarea, select, dialog, input:not([type=range])")) return;
    if (event.key === " " && event.target.closest?.("button, a, summary")) return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });

  $("#player").hidden = false;
  $("#track").hidden = false;
  $("#plain").hidden = true;
  fetch(`${base}/replay/ticks`, { redirect: "error" })
    .then((answer) => (answer.ok ? answer.text() : ""))
    .then((text) => ($("#ticks").innerHTML = text));
  show(at, { keep: true });
}
