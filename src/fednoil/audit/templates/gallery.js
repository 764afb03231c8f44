"use strict";
// The gallery: one page of images at a time. Sheets are decoded when they are needed and forgotten when many are.
const Gallery = (() => {
  const { $, make } = Page, { data } = Decisions;
  const { width, height, cell, across } = data.picture;
  const MEMORY = 96 * 2 ** 20;  // bytes of decoded sheets to keep
  const KEEP = Math.max(8, Math.floor(MEMORY / (4 * (cell * across) ** 2)));
  const DONE = { accept: "accepted", reject: "kept", change: "changed to", drop: "dropped" };
  const SIGNS = { accept: "✓", reject: "✗", change: "…", drop: "⌫" };
  const sheets = new Map();     // number -> promise of an image; the first was used longest ago
  let view = [], at = 0, per = 60, current = 0, seen = false;  // seen: somebody has gone to an image, which is marked

  function sheet(number) {
    let found = sheets.get(number);
    sheets.delete(number);
    if (!found) {
      const image = new Image();
      image.src = `data:image/webp;base64,${$(`sheet-${number}`).textContent}`;
      found = image.decode().then(() => image);
    }
    sheets.set(number, found);
    for (const old of sheets.keys()) {
      if (sheets.size <= KEEP) break;
      sheets.delete(old);
    }
    return found;
  }
  async function paint(canvas, i) {
    const place = i % (across * across);
    try {
      const image = await sheet(Math.floor(i / (across * across)));
      if (!canvas.isConnected) return;  // the page was turned meanwhile
      canvas.getContext("2d").drawImage(image, cell * (place % across), cell * Math.floor(place / across), width, height,
        0, 0, width, height);
      canvas.dataset.ready = "";
    } catch { canvas.title = "this picture can't be decoded"; }
  }

  const percent = (i) => (data.wrong[i] / 10).toFixed(data.wrong[i] % 10 ? 1 : 0);
  const given = (i) => data.classes[data.given[i]];
  const suggested = (i) => data.classes[data.suggested[i]];
  function outcome(i) {
    const kind = Decisions.name(Decisions.state(i));
    return !kind ? "" : kind === "drop" ? DONE.drop : `${DONE[kind]}${kind === "change" ? "" : ":"} ${Decisions.label(i)}`;
  }
  const other = (i) => (data.given[i] === data.suggested[i] ? [make("span", { class: "soft" }, " seems right")]
    : [" → ", make("b", { class: "suggested", title: "suggested" }, suggested(i))]);
  const describe = (i) => `${Decisions.item(i)}: given ${given(i)}, suggested ${suggested(i)}, ${percent(i)} % wrong, ` +
    (outcome(i) || "not decided");

  function tile(i) {
    const button = (kind, title) => make("button", { "data-do": kind, title, "aria-label": title, tabindex: -1 }, SIGNS[kind]);
    const canvas = make("canvas", { width, height, role: "img", "aria-label": `picture ${Decisions.item(i)}` });
    const who = Decisions.client(i);
    const node = make("li", { class: "tile", "data-i": i, tabindex: -1 },
      make("div", { class: "picture" }, canvas),
      make("div", { class: "names" }, make("span", { class: "given", title: "given" }, given(i)), ...other(i)),
      make("div", { class: "soft" }, `${percent(i)} % wrong${data.flagged[i] ? " ⚑" : ""}${who ? `, client ${who}` : ""}`),
      make("div", { class: "item soft", title: Decisions.item(i) }, data.item ? data.item[i].split("/").at(-1) : `row ${data.index[i]}`),
      make("div", { class: "outcome" }),
      make("div", { class: "acts" }, button("accept", `accept: ${suggested(i)}`), button("reject", `keep: ${given(i)}`),
        button("change", "another class"), button("drop", "drop the sample")));
    mark(node, i);
    return node;
  }
  function mark(node, i) {
    const kind = Decisions.name(Decisions.state(i));
    node.dataset.state = kind;
    node.setAttribute("aria-label", describe(i));
    node.querySelector(".outcome").textContent = outcome(i) || "not decided";
    for (const button of node.querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.do === kind);
  }
  const tiles = () => $("gallery").children;
  const pages = () => Math.max(1, Math.ceil(view.length / per));

  function draw(place = 0, focus = false) {
    const shown = Array.from(view.slice(at * per, (at + 1) * per));
    $("gallery").replaceChildren(...shown.map(tile));
    for (const node of tiles()) paint(node.querySelector("canvas"), Number(node.dataset.i));
    $("page").value = at + 1;
    $("page").max = pages();
    $("pages").textContent = `of ${pages().toLocaleString("en")}`;
    for (const button of document.querySelectorAll(".previous")) button.disabled = at === 0;
    for (const button of document.querySelectorAll(".next")) button.disabled = at === pages() - 1;
    $("nothing").hidden = view.length > 0;
    $("below").hidden = pages() === 1;
    seen = focus;
    select(Math.min(place, shown.length - 1), focus);
  }
  function select(place, focus = true) {
    const old = tiles()[current], node = tiles()[place];
    if (old) { reachable(old, -1); old.classList.remove("current"); }
    if (!node) return;
    current = place;
    reachable(node, 0);
    seen = seen || focus;
    if (seen) node.classList.add("current");
    if (focus) { node.focus({ preventScroll: true }); node.scrollIntoView({ block: "nearest" }); }
  }
  function reachable(node, index) {  // one image and its buttons at a time are stops of the Tab key
    node.tabIndex = index;
    for (const button of node.querySelectorAll("button")) button.tabIndex = index;
  }
  function turn(page, place = 0, focus = true) {
    const wanted = Math.min(pages() - 1, Math.max(0, page));
    if (wanted === at) return false;
    at = wanted;
    draw(place, focus);
    return true;
  }
  function move(step) {
    const place = current + step;
    if (place >= 0 && place < tiles().length) select(place);
    else if (place < 0) turn(at - 1, per - 1);
    else turn(at + 1);
  }
  function columns() {
    const [first] = tiles();
    return [...tiles()].filter((node) => node.offsetTop === first.offsetTop).length;
  }
  return {
    draw, select, turn, move, columns, tiles, describe, outcome, paint,
    isActive: () => seen, noticed() { seen = true; },
    show(rows, page, size) { view = rows; per = size; at = Math.min(page, pages() - 1); draw(); },
    refresh() { for (const node of tiles()) mark(node, Number(node.dataset.i)); },
    current: () => (tiles()[current] ? Number(tiles()[current].dataset.i) : undefined),
    page: () => at, size: () => view.length, kept: () => sheets.size, room: KEEP,
    onPage: () => [...tiles()].map((node) => Number(node.dataset.i)),
  };
})();
