// The colours that a person chose, before anything is drawn: no white flash in a dark room.
//
// In: what the browser remembers of the choice (auto, light, dark); auto follows the system. Out: data-theme on the
// root, which page.css reads. A browser that remembers nothing is auto. Not a module, since those come too late.

(() => {
  const NAMES = ["auto", "light", "dark"];
  const root = document.documentElement;
  let name = "auto";
  try {
    name = localStorage.getItem("goodput-theme") ?? "auto";
  } catch { /* Cookies are off. */ }

  function show() {
    if (!NAMES.includes(name)) name = "auto";
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = `Theme: ${name}`;
    button.title = "Light, dark, or as the system has it";
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
