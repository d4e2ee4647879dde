// Light, dark, or the system's theme, remembered by the browser. page.css reads data-theme of the root.
//
// A classic script: a module would run after the first paint, as a white flash in a dark room.

(() => {
  const NAMES = ["auto", "light", "dark"];
  const root = document.documentElement;
  let name = "auto";
  try {
    name = localStorage.getItem("goodput-theme") ?? "auto";
  } catch { /* Storage is disabled. */ }

  function show() {
    if (!NAMES.includes(name)) name = "auto";
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = `Theme: ${name}`;
    button.title = "Light, dark, or the system's";
  }

  globalThis.nextTheme = () => {
    name = NAMES[(NAMES.indexOf(name) + 1) % NAMES.length];
    try {
      localStorage.setItem("goodput-theme", name);
    } catch { /* As above. */ }
    show();
    document.dispatchEvent(new Event("theme"));
  };
  show();
  document.addEventListener("DOMContentLoaded", show);
})();
