// Keys for the whole page: / goes to the filter, ? shows what keys there are, Escape goes back to the whole run.
//
// In: key presses that no field, figure or dialog has taken. Out: focus, the help dialog, and calls of `actions`.

import { $ } from "./nodes.js";

export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && typing?.type === "search" && typing.value === "") typing.blur();
    else if (typing) return;
    else if (event.key === "/") focusFilter(event);
    else if (event.key === "?") openHelp();
    else if (event.key === "Escape") actions.whole();
  });
  $("skip").addEventListener("click", (event) => {
    // The address says what is shown, so a link may not change it.
    event.preventDefault();
    $("main").focus();
  });
  $("keys").addEventListener("click", openHelp);
  $("theme").addEventListener("click", () => globalThis.nextTheme());
}

function focusFilter(event) {
  const filter = $("runs").hidden ? $("ranks-filter") : $("runs-filter");
  if (filter.closest("[hidden]")) return;
  event.preventDefault();
  filter.focus();
  filter.select();
}

function openHelp() {
  if (!$("help").open) $("help").showModal();
}
