// Links to the sections of a run that are shown, which stay at the top of the window.

import { $, keyed, make, text } from "../dom/nodes.js";

const shownSections = () => [...document.querySelectorAll("#run > [data-nav]")].filter((one) => !one.hidden);

export function drawSections() {
  keyed($("sections"), () => make("button", { type: "button" }), shownSections(), (section) => section.id, (button, section) => {
    text(button, section.dataset.nav);
  });
}

// The address says which run is shown, so a link within the page may not change it: these are buttons.
export function listenToSections() {
  $("sections").addEventListener("click", (event) => {
    const id = event.target.closest("button")?.dataset.key;
    if (!id) return;
    const heading = $(id).querySelector("h2");
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
    $(id).scrollIntoView({ block: "start" });
  });
}
