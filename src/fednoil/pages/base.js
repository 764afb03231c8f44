"use strict";
// What the pages' scripts share: making elements, sorting tables by a heading, a square table in shades.
const Page = (() => {
  const $ = (id) => document.getElementById(id);

  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "g", "line", "circle", "text", "title"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  function options(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  }

  // ---- sorting: a click on a heading, or Enter on it
  function sortBy(heading) {
    const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.cells[column], v = cell.dataset.v;
      return v !== undefined ? Number(v) : cell.classList.contains("none") ? null : cell.textContent;
    };
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);  // what isn't there comes last
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
  }
  // ---- on paper nothing can be opened
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });

  for (const heading of document.querySelectorAll(".sortable thead th")) {
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sortBy(heading));
    heading.addEventListener("keydown", (event) => event.key === "Enter" && sortBy(heading));
  }

  // ---- a matrix of counts or shares as a table, each cell in percent of its row
  function square(matrix, names, corner) {
    const head = make("tr", {}, make("th", {}, corner), ...names.map((name) => make("th", { scope: "col" }, name)));
    const rows = matrix.map((row, i) => {
      const total = row.reduce((a, b) => a + b, 0) || 1;
      return make("tr", {}, make("th", { scope: "row" }, names[i]), ...row.map((n, j) => {
        const share = n / total, strength = Math.round(85 * share), colour = i === j ? "#0072B2" : "#D55E00";
        return make("td", { title: `${+n.toFixed(4)} of ${+total.toFixed(4)}`,
          style: `background: color-mix(in srgb, ${colour} ${strength}%, transparent)` }, (100 * share).toFixed(0));
      }));
    });
    return make("table", { class: "square" }, make("thead", {}, head), make("tbody", {}, ...rows));
  }
  return { $, make, options, sortBy, square };
})();
