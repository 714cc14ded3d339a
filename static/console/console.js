// What the pages need beyond htmx: open parts stay open while the page follows its job, times keep counting, dialogs
// close once they have been answered, and a server that cannot be reached is said so. All of it works without, for reading.
"use strict";

// --- morphing leaves alone what the reader did ----------------------------------------------------------------------

const touched = new WeakSet();

document.addEventListener("click", (event) => {
  const summary = event.target.closest("summary");
  if (summary) touched.add(summary.parentElement);
});

Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) => {
  if (name === "open" && touched.has(element)) return false;
};

// What somebody is typing stays; the hidden version beside it is brought up to date.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (element) => {
  if (element.localName === "textarea" || (element.localName === "input" && element.type !== "hidden")) return false;
};

// --- times that count -----------------------------------------------------------------------------------------------

let ahead = 0; // by how many milliseconds this machine's clock runs ahead of the server's

function setClock() {
  const told = document.querySelector("[data-now]");
  if (told) ahead = Date.now() - Date.parse(told.dataset.now);
}

function duration(milliseconds) {
  const seconds = Math.max(milliseconds / 1000, 0);
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const whole = Math.floor(seconds);
  for (const [size, unit, smaller, name] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / smaller);
    return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${name}` : "");
  }
  return `${whole} s`;
}

function tick() {
  const now = Date.now() - ahead;
  for (const time of document.querySelectorAll("time[data-ago], time[data-since]")) {
    const away = now - Date.parse(time.dateTime);
    if ("since" in time.dataset) time.textContent = duration(away);
    else time.textContent = away < 0 ? `in ${duration(-away)}` : `${duration(away)} ago`;
  }
}

// The viewer's own zone is known here only.
function tellLocally() {
  const parts = { weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  for (const time of document.querySelectorAll("time[data-local]")) {
    time.textContent = new Date(time.dateTime).toLocaleString(undefined, parts);
  }
}

setClock();
tellLocally();
setInterval(tick, 500);

// --- answers --------------------------------------------------------------------------------------------------------

const trouble = document.getElementById("trouble");

function say(text) {
  trouble.textContent = text;
  trouble.hidden = !text;
}

document.body.addEventListener("htmx:afterSwap", setClock);

document.body.addEventListener("htmx:afterRequest", (event) => {
  const { elt, successful, xhr } = event.detail;
  if (successful) say("");
  const dialog = elt.closest("[popover]");
  const answered = successful || [409, 412, 422].includes(xhr.status);
  if (dialog && answered && dialog.matches(":popover-open")) dialog.hidePopover();
  if (elt.localName === "form" && answered) {
    if (xhr.status !== 422) elt.reset(); // what was refused can be mended
    document.querySelector("#notices .notice")?.scrollIntoView({ block: "nearest" });
  }
});

document.body.addEventListener("htmx:responseError", (event) => {
  const status = event.detail.xhr.status;
  if (status === 403) say("Not accepted: you may not do this, or the page is too old. Reload it.");
  else if (status === 404) say("This is no longer there. Reload the page.");
  else say(`The server could not answer (${status}). What you see may be old; it is tried again.`);
});

for (const kind of ["htmx:sendError", "htmx:timeout"]) {
  document.body.addEventListener(kind, () => say("The server cannot be reached. What you see may be old; it is tried again."));
}
