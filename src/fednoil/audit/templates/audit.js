"use strict";
// The page around the gallery: filters, sorting, keys, dialogs, progress, the clients' table.
(() => {
  const { $, make, options, square } = Page, { data } = Decisions;
  const say = (text) => { $("live").textContent = text; };
  const FIELDS = ["client", "given", "suggested", "state", "flagged", "from", "to", "name", "sort", "size", "per"];
  const FLAGGED = data.flagged.reduce((a, b) => a + b, 0);
  const DEFAULTS = { client: "all", given: "all", suggested: "all", state: "all", flagged: FLAGGED ? "1" : "all", from: "", to: "",
    name: "", sort: "most", size: "112", per: "60" };
  const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

  // ---- which images, in which order
  function chosen() {
    const value = (id) => $(id).value, number = (id) => (value(id) === "all" ? null : Number(value(id)));
    const client = number("client"), given = number("given"), suggested = number("suggested"), flagged = number("flagged");
    const limit = (id, otherwise) => (value(id) === "" ? otherwise : 10 * Number(value(id)));
    const from = limit("from", 0), to = limit("to", 1000), state = value("state"), text = value("name").toLowerCase();
    const rows = [];
    for (let i = 0; i < data.index.length; i++) {
      if (client !== null && data.client[i] !== client) continue;
      if (given !== null && data.given[i] !== given) continue;
      if (suggested !== null && data.suggested[i] !== suggested) continue;
      if (flagged !== null && data.flagged[i] !== flagged) continue;
      if (data.wrong[i] < from || data.wrong[i] > to) continue;
      const kind = Decisions.name(Decisions.state(i));
      if (state === "undecided" ? kind : state === "decided" ? !kind : state !== "all" && kind !== state) continue;
      if (text && !Decisions.item(i).toLowerCase().includes(text)) continue;
      rows.push(i);
    }
    return sorted(rows, value("sort"));
  }
  function sorted(rows, by) {  // rows come with the most suspicious first, and stay so where the key is the same
    const collator = new Intl.Collator(undefined, { numeric: true });
    const place = (names) => {
      const order = names.map((_, i) => i).sort((a, b) => collator.compare(names[a], names[b]));
      const rank = new Int32Array(names.length);
      order.forEach((i, r) => { rank[i] = r; });
      return rank;
    };
    if (by === "least") return rows.reverse();
    if (by === "client") return rows.sort((a, b) => data.client[a] - data.client[b]);
    if (by === "item") {
      const rank = data.item ? place(data.item) : data.index;
      return rows.sort((a, b) => rank[a] - rank[b]);
    }
    if (by === "given" || by === "suggested") {
      const rank = place(data.classes);
      return rows.sort((a, b) => rank[data[by][a]] - rank[data[by][b]]);
    }
    return rows;
  }
  let timer = 0;
  function apply(page = 0) {
    clearTimeout(timer);  // what was typed and waits is part of this
    $("gallery").style.setProperty("--side", `${$("size").value}px`);
    const rows = chosen();
    Gallery.show(rows, page, Number($("per").value));
    const all = data.index.length;
    showClient();
    const changed = FIELDS.filter((id) => !["size", "per", "sort"].includes(id) && $(id).value !== DEFAULTS[id]);
    $("filtered").textContent = changed.length ? `(by ${changed.join(", ")})` : FLAGGED ? "(flagged images)" : "";
    $("count").textContent = rows.length === all ? count(all, "image") : `${rows.length.toLocaleString("en")} of ${count(all, "image")}`;
    remember();
  }
  function remember() {
    Decisions.remember({ fields: Object.fromEntries(FIELDS.map((id) => [id, $(id).value])), page: Gallery.page(),
      found: $("found") ? $("found").open : true });
  }
  function turn(step) {
    if (!Gallery.turn(Gallery.page() + step)) return;
    remember();
    say(`page ${Gallery.page() + 1}`);
  }
  function move(step) {
    if (waits()) return;
    const page = Gallery.page();
    Gallery.move(step);
    if (Gallery.page() !== page) remember();
  }

  function waits() {  // the first key selects, and says so by the focus; it decides nothing that isn't seen
    if (Viewer.isOpen() || Gallery.isActive() || Gallery.current() === undefined) return false;
    Gallery.select(Gallery.onPage().indexOf(Gallery.current()));
    return true;
  }

  // ---- decisions
  function progress() {
    const decided = Decisions.decided(), { accept, reject, change, drop } = Decisions.counts;
    const all = FLAGGED || data.index.length, { done, wrong, judged } = queue();
    $("progress").max = all || 1;
    $("progress").value = done;
    $("progress-text").textContent = `${done.toLocaleString("en")} of ${all.toLocaleString("en")}${FLAGGED ? " flagged" : ""} decided` +
      (decided > done ? `, ${decided - done} more` : "") +
      (decided ? `: ${accept} accepted, ${reject} kept, ${change} changed, ${drop} dropped` : "");
    $("precision").textContent = judged ? `${wrong} of ${judged} flags were correct (${Math.round(100 * wrong / judged)} %)` : "";
    $("saved").textContent = decided && Decisions.saved() ? "saved in this browser" : "";
    $("undo").disabled = !Decisions.steps();
    $("export").disabled = !decided;
    $("alert").hidden = Decisions.saved();
    if (!Decisions.saved()) {
      $("alert").textContent = "This browser can’t keep the decisions (its storage is full or switched off). " +
        "They are safe only as long as this page is open: export them before you close it.";
    }
  }
  function queue() {  // how many of the flagged images are decided, and of how many of these the given label was wrong
    const found = { done: 0, wrong: 0, judged: 0 };
    for (let i = 0; i < data.index.length; i++) {
      const kind = Decisions.name(Decisions.state(i));
      if (!kind || (FLAGGED && !data.flagged[i])) continue;
      found.done += 1;
      if (kind === "drop" || !data.flagged[i]) continue;
      found.judged += 1;
      found.wrong += kind === "change" || (kind === "accept" && data.given[i] !== data.suggested[i]);
    }
    return found;
  }
  const STATES = { accept: 1, reject: 2, drop: 3, clear: 0 };
  function decide(kind, i, advance) {
    if (i === undefined) return;
    if (kind === "change") return openChange(i, advance);
    take(i, STATES[kind], advance && kind !== "clear");
  }
  function take(i, state, advance) {
    Decisions.set([[i, state]]);
    say(Gallery.describe(i));
    if (advance) move(1);
  }
  function decidePage(kind) {
    const rows = Gallery.onPage().filter((i) => !Decisions.state(i));
    Decisions.set(rows.map((i) => [i, STATES[kind]]));
    say(`${count(rows.length, "image")} ${kind === "accept" ? "accepted" : "kept"}`);
  }
  function undo() {
    const rows = Decisions.undo();
    if (!rows.length) return say("nothing to undo");
    const place = Gallery.onPage().indexOf(rows[0]);
    if (place >= 0) Gallery.select(place);
    say(rows.length === 1 ? `undone: ${Gallery.describe(rows[0])}` : `undone: ${count(rows.length, "decision")}`);
  }

  // ---- another class
  let changing, advancing;
  function openChange(i, advance) {
    [changing, advancing] = [i, advance];
    $("change-what").textContent = Gallery.describe(i);
    $("change-filter").value = "";
    listClasses();
    $("change").showModal();
    $("change-filter").focus();
  }
  function listClasses() {
    const text = $("change-filter").value.toLowerCase();
    const found = data.classes.map((name, c) => [c, name]).filter(([c, name]) =>
      c !== data.given[changing] && name.toLowerCase().includes(text));
    found.sort((a, b) => b[1].toLowerCase().startsWith(text) - a[1].toLowerCase().startsWith(text));
    options($("change-list"), found);
    $("change-list").selectedIndex = found.length ? 0 : -1;
  }
  function takeChange() {
    const value = $("change-list").value;
    if (value === "") return;
    const c = Number(value), state = c === data.suggested[changing] ? STATES.accept : 4 + c;
    $("change").close();
    Gallery.select(Gallery.onPage().indexOf(changing));
    take(changing, state, advancing);
  }

  // ---- files
  function exportCsv() {
    if (!Decisions.decided()) return say("nothing is decided yet");
    const link = make("a", { href: URL.createObjectURL(new Blob([Decisions.toCsv()], { type: "text/csv" })),
      download: `decisions-${data.id}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    Decisions.exported();
    say(`${count(Decisions.decided(), "decision")} exported`);
  }
  async function importCsv(file) {
    const found = Decisions.fromCsv(await file.text());
    const foreign = found.foreign ? ` ${count(found.foreign, "line")} not of this audit or not readable, left out.` : "";
    const text = found.error || `${count(found.read, "decision")} read, ${found.rows.length} of them new or different.${foreign}`;
    apply(Gallery.page());
    progress();
    $("alert").hidden = false;
    $("alert").textContent = text;
  }

  // ---- the clients' table
  function showClient() {  // the one that is filtered by, or the only one
    if (!$("clients")) return;
    const rows = [...$("clients").tBodies[0].rows], at = $("client").value;
    for (const other of rows) other.removeAttribute("aria-selected");
    const row = rows.length === 1 ? rows[0] : rows.find((one) => at !== "all" && one.dataset.client === data.clients[at]);
    $("matrix").replaceChildren();
    if (!row) return;
    if (at !== "all") row.setAttribute("aria-selected", "true");
    const { matrix, confused } = data.summary[row.dataset.number];
    const parts = [];
    if (matrix) parts.push(make("h3", {}, "Given label (down) and estimated true label (across), % of the row"),
      make("div", { class: "scroll" }, square(matrix, data.classes.slice(0, matrix.length), "given \\ true")));
    if (confused.length) parts.push(make("h3", {}, "Most confused"), make("p", { class: "pairs" },
      ...confused.map(([given, suggested, n]) => {
        const button = make("button", { title: "show these images" }, `${given} → ${suggested}: ${n.toLocaleString("en")}`);
        button.onclick = () => {
          choose(row.dataset.client, given, suggested);
          $("images").scrollIntoView();
        };
        return button;
      })));
    $("matrix").replaceChildren(...parts);
  }
  function choose(client, given, suggested) {
    const place = (names, name) => { const at = names.indexOf(name); return at < 0 ? "all" : String(at); };
    Object.entries(DEFAULTS).forEach(([id, value]) => { if (!["size", "per"].includes(id)) $(id).value = value; });
    $("client").value = place(data.clients, client);
    if (given !== undefined) { $("given").value = place(data.classes, given); $("suggested").value = place(data.classes, suggested); }
    apply();
  }
  function setUpClients() {
    if (!$("clients")) return;
    const body = $("clients").tBodies[0], rowOf = (event) => event.target.closest("tr");
    const pick = (row) => { choose(row.dataset.client); $("images").scrollIntoView(); };
    body.addEventListener("click", (event) => pick(rowOf(event)));
    body.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(rowOf(event)); });
    $("found").addEventListener("toggle", remember);
  }

  // ---- keys
  const key = (kind) => { if (!waits()) decide(kind, Gallery.current(), true); };  // a key goes on to the next image, the mouse stays
  const KEYS = {
    a: () => key("accept"), r: () => key("reject"), c: () => key("change"), d: () => key("drop"),
    x: () => key("clear"), delete: () => key("clear"), u: undo, n: () => turn(1), p: () => turn(-1),
    pagedown: () => turn(1), pageup: () => turn(-1), e: exportCsv, "?": () => $("help").showModal(),
    arrowright: () => move(1), arrowleft: () => move(-1), home: () => Gallery.select(0),
    end: () => Gallery.select(Gallery.tiles().length - 1),
    arrowdown: () => vertical(1), arrowup: () => vertical(-1),
    enter: () => { if (!waits()) Viewer.open(Gallery.current()); },
  };
  const SHIFTED = { a: () => decidePage("accept"), r: () => decidePage("reject") };
  function vertical(step) {
    if (waits()) return;
    const place = Gallery.onPage().indexOf(Gallery.current()) + step * Gallery.columns();
    if (place >= 0 && place < Gallery.tiles().length) Gallery.select(place);
  }
  addEventListener("keydown", (event) => {
    const pressed = event.key.toLowerCase();
    if (Viewer.isOpen() && !$("change").open) return viewing(event, pressed);
    const typing = event.target.matches?.("input, select, dialog, dialog *");
    if (typing || document.querySelector("dialog[open]") || event.altKey) return;
    if (event.ctrlKey || event.metaKey) {
      if (pressed === "z" && !event.shiftKey) { event.preventDefault(); undo(); }
      return;
    }
    const inTable = event.target.closest?.("#clients, summary, button, a");  // arrows and Enter have a meaning of their own there
    const call = (event.shiftKey && SHIFTED[pressed]) || (!event.shiftKey || pressed === "?" ? KEYS[pressed] : undefined);
    if (!call || (inTable && pressed.length > 1)) return;
    event.preventDefault();
    call();
  });

  function viewing(event, pressed) {
    if (event.ctrlKey || event.metaKey || event.altKey || pressed === "enter" || !["a", "r", "c", "d", "x", "u", "arrowright", "arrowleft"].includes(pressed)) return;
    event.preventDefault();
    KEYS[pressed]();
    look();
  }
  const look = () => { if (Viewer.isOpen() && Gallery.current() !== undefined) Viewer.open(Gallery.current()); };
  async function copy() {
    const range = document.createRange();
    range.selectNodeContents($("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try { await navigator.clipboard.writeText($("command").textContent); } catch { document.execCommand("copy"); }
    $("copied").textContent = "copied";
  }

  // ---- everything together
  const names = (list, all) => [["all", all], ...list.map((name, i) => [i, name])];
  options($("client"), names(data.clients, "all"));
  const used = (column) => new Set(data[column]);
  for (const column of ["given", "suggested"]) {
    const there = used(column);
    options($(column), names(data.classes, "all").filter(([c]) => c === "all" || there.has(c)));
  }
  $("client").closest("label").hidden = data.clients.length < 2;
  const { fields = {}, page = 0, found = innerWidth > 640 } = Decisions.remembered();
  for (const id of FIELDS) {
    $(id).value = fields[id] ?? DEFAULTS[id];
    if ($(id).value === "" && DEFAULTS[id] !== "") $(id).value = DEFAULTS[id];
    if (["from", "to", "name"].includes(id)) continue;
    $(id).onchange = () => apply();
  }
  if ($("found")) $("found").open = found;
  for (const id of ["from", "to", "name"]) $(id).oninput = () => { clearTimeout(timer); timer = setTimeout(apply, 150); };
  $("reset").onclick = () => { for (const id of FIELDS) $(id).value = DEFAULTS[id]; apply(); };
  $("page").onchange = () => { Gallery.turn(Number($("page").value) - 1, 0, false); $("page").value = Gallery.page() + 1; remember(); };
  for (const button of document.querySelectorAll(".previous")) button.onclick = () => turn(-1);
  for (const button of document.querySelectorAll(".next")) button.onclick = () => turn(1);
  $("undo").onclick = undo;
  $("export").onclick = exportCsv;
  $("import").onclick = () => $("file").click();
  $("file").onchange = () => { const [file] = $("file").files; if (file) importCsv(file); $("file").value = ""; };
  $("help-open").onclick = () => $("help").showModal();
  $("accept-page").onclick = () => decidePage("accept");
  $("reject-page").onclick = () => decidePage("reject");
  $("change-filter").oninput = listClasses;
  $("change-take").onclick = takeChange;
  $("change-cancel").onclick = () => $("change").close();
  $("change-list").ondblclick = takeChange;
  $("change").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id !== "change-cancel") { event.preventDefault(); takeChange(); }
    if (event.target.id === "change-filter" && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      const list = $("change-list"), step = event.key === "ArrowDown" ? 1 : -1;
      list.selectedIndex = Math.min(list.length - 1, Math.max(0, list.selectedIndex + step));
    }
  });
  $("gallery").addEventListener("click", (event) => {
    const node = event.target.closest(".tile");
    if (!node) return;
    Gallery.select([...Gallery.tiles()].indexOf(node));
    const kind = event.target.closest("button")?.dataset.do;
    if (event.target.closest(".picture")) Viewer.open(Number(node.dataset.i));
    if (kind) decide(node.dataset.state === kind && kind !== "change" ? "clear" : kind, Number(node.dataset.i));
  });
  $("gallery").addEventListener("focusin", (event) => {
    const node = event.target.closest(".tile");
    if (node) Gallery.noticed();
    if (node && node.tabIndex !== 0) Gallery.select([...Gallery.tiles()].indexOf(node), false);
  });
  $("viewer").addEventListener("click", (event) => {
    const kind = event.target.closest("button")?.dataset.do;
    if (kind) decide(kind, Viewer.shown(), false);
    if (event.target === $("viewer")) $("viewer").close();  // beside it
  });
  $("viewer").addEventListener("close", () => Gallery.select(Math.max(0, Gallery.onPage().indexOf(Viewer.shown()))));
  $("viewer-close").onclick = () => $("viewer").close();
  $("viewer-previous").onclick = () => { move(-1); look(); };
  $("viewer-next").onclick = () => { move(1); look(); };
  $("apply-open").onclick = () => { $("copied").textContent = ""; $("apply").showModal(); };
  $("copy").onclick = copy;
  Decisions.onChange(() => { progress(); Gallery.refresh(); Viewer.refresh(); });
  setUpClients();
  progress();
  apply(page);
})();
