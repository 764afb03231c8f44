"use strict";
(() => {
  const { $ } = Page, data = JSON.parse($("data").textContent);
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"], DASHES = [[], [6, 4], [2, 3]];
  const every = (selector) => [...document.querySelectorAll(selector)];

  // ---- filters: rows of methods, columns of settings
  function filter() {
    const wanted = $("filter").value.trim().toLowerCase(), part = $("part")?.value ?? "";
    for (const row of every("tr[data-method]")) row.hidden = !row.dataset.method.toLowerCase().includes(wanted);
    const shown = ["method", ...data.settings].map((name, i) => !i || !part || name.split("/").includes(part));
    for (const row of $("accuracies").rows) [...row.cells].forEach((cell, i) => { cell.hidden = !shown[i]; });
    scrolls();
  }
  $("filter").addEventListener("input", filter);
  $("part")?.addEventListener("change", filter);
  function scrolls() {
    for (const box of every(".scroll")) {
      box.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
    }
  }
  for (const box of every(".scroll")) box.addEventListener("scroll", scrolls, { passive: true });
  addEventListener("resize", () => { scrolls(); draw(); });

  // ---- curves: those of the accuracies that were clicked
  const chosen = new Map();
  let chart = null;
  function draw() {
    chart?.destroy();
    chart = null;
    $("curves").hidden = !chosen.size;
    if (!chosen.size) return;
    const lines = [...chosen.values()], ink = getComputedStyle(document.documentElement);
    const thin = { stroke: ink.getPropertyValue("--line"), width: 1 };
    const axis = { stroke: ink.getPropertyValue("--soft"), grid: thin, ticks: thin };
    chart = new uPlot({
      width: $("chart").clientWidth, height: 260, scales: { x: { time: false } },
      axes: [{ ...axis, label: "% of its training steps" }, { ...axis, label: "test accuracy, %" }],
      series: [{ label: "%" }, ...lines.map(([name], i) => ({
        label: name, stroke: COLOURS[i % 6], dash: DASHES[Math.floor(i / 6) % 3], width: 1.6,
        value: (_, v) => (v === null || v === undefined ? "–" : v.toFixed(2)),
      }))],
      cursor: { focus: { prox: 24 } }, focus: { alpha: 0.25 },
    }, [lines[0][1].map((_, i) => i + 1), ...lines.map(([, ys]) => ys)], $("chart"));
  }
  function toggle(cell, name, curve) {
    const on = !chosen.delete(cell);
    if (on) chosen.set(cell, [name, curve]);
    cell.setAttribute("aria-pressed", on);
    draw();
  }
  for (const row of $("accuracies").tBodies[0].rows) {
    data.settings.forEach((setting, i) => {
      const cell = row.cells[i + 1], method = row.dataset.method, curve = data.curves[method]?.[setting];
      if (!curve) return;
      const name = data.settings.length > 1 ? `${method}, ${setting}` : method;
      cell.tabIndex = 0;
      cell.setAttribute("role", "button");
      cell.setAttribute("aria-pressed", "false");
      cell.addEventListener("click", () => toggle(cell, name, curve));
      cell.addEventListener("keydown", (event) => event.key === "Enter" && toggle(cell, name, curve));
    });
  }
  $("clear").addEventListener("click", () => {
    for (const cell of chosen.keys()) cell.setAttribute("aria-pressed", "false");
    chosen.clear();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  scrolls();
})();
