// Pages that ask again and again: they rest while nobody looks, and never look live when they are not.

const SELECTOR = "[hx-trigger^='every']";
const offline = document.getElementById("offline");
const asks = (event) => event.detail.elt?.matches?.(SELECTOR);
let missed = false;

function lost(event) {
  if (asks(event)) offline.hidden = false;
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (!asks(event)) return;
  missed = document.hidden;
  if (document.hidden) event.preventDefault();
});
document.addEventListener("htmx:sendError", lost);
document.addEventListener("htmx:timeout", lost);
document.addEventListener("htmx:responseError", (event) => {
  // Whoever was signed out is led to the door, and comes back to this page.
  if (asks(event) && event.detail.xhr.status === 401) location.reload();
  else lost(event);
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const from = event.detail.xhr.responseURL;
  if (asks(event) && from && new URL(from).pathname !== location.pathname) {
    event.preventDefault();
    location.reload();
  }
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target?.matches?.(SELECTOR) || asks(event)) offline.hidden = true;
});
document.addEventListener("visibilitychange", () => {
  const part = document.querySelector(SELECTOR);
  if (!document.hidden && missed && part) {
    missed = false;
    window.htmx.ajax("GET", part.getAttribute("hx-get"), { source: part, target: part, swap: "outerHTML" });
  }
});
