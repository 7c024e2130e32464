// Loads the page again every few seconds while `live` is checked, and puts its content in place;
// once a minute if it is costly to make.
"use strict";
const box = document.getElementById("live");
const pauseMs = () => Number(document.getElementById("main").dataset.pauseMs);
let timer = 0;

async function refresh() {
  const focused = document.activeElement;
  const busy = focused && ["INPUT", "SELECT", "BUTTON"].includes(focused.tagName) && focused !== box;
  if (!document.hidden && !busy) {
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.getElementById("main").replaceWith(page.getElementById("main"));
      }
    } catch {
      // The server is gone, or busy: the next time may do.
    }
  }
  if (box.checked) timer = setTimeout(refresh, pauseMs());
}

if (box) {
  box.checked = sessionStorage.getItem("live") === "yes";
  box.addEventListener("change", () => {
    sessionStorage.setItem("live", box.checked ? "yes" : "no");
    clearTimeout(timer);
    if (box.checked) refresh();
  });
  if (box.checked) timer = setTimeout(refresh, pauseMs());
}
