// What a page does by itself: it shows times in the browser's zone, loads itself again while `live`
// is checked or something goes on, and takes a search further until it has filled the page.
"use strict";
const main = () => document.getElementById("main");
const live = document.getElementById("live");
const utc = document.getElementById("utc");
const MOST_ROWS = 50;
let timer = 0;
let searching = false;
let stopped = false;

// -- times -----------------------------------------------------------------------------------------

const two = (number) => String(number).padStart(2, "0");

function inZone(moment) {
  if (utc.checked) return [moment.toISOString().slice(0, -1).replace("T", " "), "UTC"];
  const east = -moment.getTimezoneOffset();
  const local = new Date(moment.getTime() + east * 60000).toISOString().slice(0, -1);
  const away = Math.abs(east);
  const zone = `${east < 0 ? "-" : "+"}${two(Math.floor(away / 60))}:${two(away % 60)}`;
  return [local.replace("T", " "), zone];
}

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    const [text, zone] = inZone(new Date(time.dateTime));
    time.firstChild.data = `${text} `;
    time.lastChild.textContent = zone;
  }
  const zone = utc.checked ? "" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const said of document.querySelectorAll(".zone")) said.textContent = zone || "UTC";
  for (const field of document.getElementsByName("zone")) field.value = zone;
}

// -- pages that go on ------------------------------------------------------------------------------

function again() {
  clearTimeout(timer);
  const running = main().dataset.running;
  if (running === "search") {
    if (!searching && !stopped) searchOn();
  } else if (running || live.checked) timer = setTimeout(refresh, running ? 1000 : 5000);
}

async function load(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (!answer.ok) throw new Error(answer.statusText);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function refresh() {
  const focused = document.activeElement;
  const inside = focused && focused !== main() && main().contains(focused);
  // Nor is anything taken away that is being read, or was typed.
  const busy = inside || main().querySelector(".alter, .record [open]");
  if (!document.hidden && !busy && main().dataset.running !== "search") {
    try {
      main().replaceWith((await load(location.href)).getElementById("main"));
      showTimes();
    } catch {
      // The server is gone, or busy: the next time may do.
    }
  }
  again();
}

async function searchOn() {
  searching = true;
  try {
    while (main().dataset.running === "search") {
      const stop = document.getElementById("stop");
      stop.hidden = stopped;
      stop.onclick = () => {
        stopped = stop.hidden = true;
      };
      const further = document.querySelector(".pager [rel=next]");
      if (stopped || !further) break;
      append(await load(further.href));
    }
  } catch {
    // The link is still there, to go on by hand.
  }
  searching = false;
}

// The records of the next page go below those that are here; the rest of it takes the old one's place.
function append(page) {
  const taken = [document, page].map((one) => one.querySelector(".take"));
  const rows = taken.filter(Boolean).map((link) => new URL(link.href).searchParams.get("rows"));
  const table = document.querySelector(".wide table");
  const more = [...page.querySelectorAll(".wide tbody > tr")];
  table.tBodies[0].append(...more);
  table.hidden = !table.tBodies[0].rows.length;
  document.getElementById("far").replaceWith(page.getElementById("far"));
  const old = [...document.querySelectorAll(".pager")];
  const back = old[0].querySelector("[rel=prev]");
  const pager = page.querySelector(".pager");
  pager.querySelector("[rel=prev]")?.remove();
  if (back) pager.prepend(back);
  if (rows.length && !pager.querySelector(".take")) pager.append(taken[0]);
  for (const link of pager.querySelectorAll(".take")) {
    const address = new URL(link.href);
    address.searchParams.set("rows", rows.join(","));
    link.href = address.href;
  }
  old[0].replaceWith(pager);
  for (const one of old.slice(1)) one.remove();
  const isFull = table.querySelectorAll(".record").length >= MOST_ROWS;
  main().dataset.running = isFull ? "" : page.getElementById("main").dataset.running;
  showTimes();
}

for (const [box, changed] of [[live, () => (live.checked ? refresh() : again())], [utc, showTimes]]) {
  box.parentElement.hidden = false;
  const store = box === live ? sessionStorage : localStorage;
  box.checked = store.getItem(box.id) === "yes";
  box.addEventListener("change", () => {
    store.setItem(box.id, box.checked ? "yes" : "no");
    changed();
  });
}
document.addEventListener("click", (event) => {
  const row = event.target.closest?.(".record");
  if (!row || event.target.closest("summary, a") || String(getSelection())) return;
  const details = row.querySelector("details");
  details.open = !details.open;
});
showTimes();
again();
