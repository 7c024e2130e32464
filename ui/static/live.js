// Loads the page again every few seconds while `live` is checked, and puts its content in place.
// What shows something that goes on is loaded every second, until that has ended.
"use strict";
const box = document.getElementById("live");
const main = () => document.getElementById("main");
let timer = 0;

function again() {
  clearTimeout(timer);
  const running = main().dataset.running;
  if (running || (box && box.checked)) {
    timer = setTimeout(refresh, running ? 1000 : 5000);
  }
}

async function refresh() {
  const focused = document.activeElement;
  const busy = focused && focused !== main() && main().contains(focused);
  if (!document.hidden && !busy) {
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main().replaceWith(page.getElementById("main"));
      }
    } catch {
      // The server is gone, or busy: the next time may do.
    }
  }
  again();
}

if (box) {
  box.checked = sessionStorage.getItem("live") === "yes";
  box.addEventListener("change", () => {
    sessionStorage.setItem("live", box.checked ? "yes" : "no");
    if (box.checked) refresh();
    else again();
  });
}
again();
