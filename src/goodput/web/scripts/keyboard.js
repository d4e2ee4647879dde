// Keys of the whole page: / focuses the filter, ? opens the help, Escape returns to the whole run.

import { $ } from "./dom/nodes.js";

// `showWholeRun` is called on Escape. Keys that a field, a chart or a dialog has handled are left alone.
export function listenToKeyboard(showWholeRun) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && typing?.type === "search" && typing.value === "") typing.blur();
    else if (typing) return;
    else if (event.key === "/") focusFilter(event);
    else if (event.key === "?") openHelp();
    else if (event.key === "Escape") showWholeRun();
  });
  $("skip").addEventListener("click", (event) => {
    // The address holds what is shown, so a link within the page may not change it.
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
