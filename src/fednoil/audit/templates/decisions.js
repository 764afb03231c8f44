"use strict";
// Decisions about labels: made, taken back, kept in the browser, written to and read from CSV.
const Decisions = (() => {
  const data = JSON.parse(Page.$("data").textContent);
  Page.$("data").textContent = "";  // the parsed columns are enough
  const NAMES = ["", "accept", "reject", "drop", "change"];
  const COLUMNS = ["client", "item", "index", "given", "decision", "label"];
  const CHUNK = 1000;    // rows of the audit that one entry of the storage holds: a decision writes a few kilobytes
  const STEPS = 1000;    // that can be taken back
  const PREFIX = `fednoil-audit-${data.id}`;
  const size = data.index.length;
  const states = new Int32Array(size);   // 0 none, 1 accept, 2 reject, 3 drop, 4 + class: change
  const counts = { accept: 0, reject: 0, drop: 0, change: 0 };
  const chunks = new Map();              // number -> { row of the audit: state }, rows that aren't shown included
  const unsaved = new Set();             // numbers of chunks that the storage doesn't hold as they are
  const shownAt = new Map(data.row.map((row, i) => [row, i]));
  const steps = [];
  let changed = () => {}, exported = true;

  const name = (state) => NAMES[Math.min(state, 4)];
  const item = (i) => (data.item ? data.item[i] : String(data.index[i]));
  const client = (i) => (data.client[i] < 0 ? "" : data.clients[data.client[i]]);
  function label(i, state = states[i]) {
    if (state === 3) return "";
    return data.classes[state === 1 ? data.suggested[i] : state >= 4 ? state - 4 : data.given[i]];
  }
  const valid = (state) => Number.isInteger(state) && state > 0 && state < 4 + data.classes.length;

  function put(i, state) {
    const before = states[i], row = data.row[i], number = Math.floor(row / CHUNK);
    if (before) counts[name(before)] -= 1;
    if (state) counts[name(state)] += 1;
    states[i] = state;
    if (!chunks.has(number)) chunks.set(number, {});
    if (state) chunks.get(number)[row] = state; else delete chunks.get(number)[row];
    unsaved.add(number);
    return before;
  }
  function save() {
    try {
      for (const number of unsaved) {
        localStorage.setItem(`${PREFIX}/${number}`, JSON.stringify(chunks.get(number)));
        unsaved.delete(number);
      }
    } catch { /* full, or not allowed: what isn't saved stays marked, and the next change tries again */ }
  }
  function read(number, text) {
    let kept = {};
    try { kept = JSON.parse(text) || {}; } catch { /* damaged: as if it weren't there */ }
    const chunk = {};
    for (const [row, state] of Object.entries(kept)) if (valid(state)) chunk[row] = state;
    const old = chunks.get(number) || {};
    for (const row of new Set([...Object.keys(old), ...Object.keys(chunk)])) {
      const i = shownAt.get(Number(row));
      if (i !== undefined) put(i, chunk[row] || 0);
    }
    chunks.set(number, chunk);
    unsaved.delete(number);
  }
  function load() {
    try {
      for (let number = 0; number * CHUNK < data.total; number++) {
        const text = localStorage.getItem(`${PREFIX}/${number}`);
        if (text !== null) read(number, text);
      }
    } catch { unsaved.add(-1); chunks.set(-1, {}); }  // no storage at all: tell it at once
  }

  // One step: [[row shown, state], …]. What is the same already is no part of it.
  function set(pairs) {
    const before = pairs.filter(([i, state]) => states[i] !== state).map(([i, state]) => [i, put(i, state)]);
    if (!before.length) return [];
    steps.push(before);
    if (steps.length > STEPS) steps.shift();
    finish();
    return before.map(([i]) => i);
  }
  function undo() {
    const step = steps.pop();
    if (!step) return [];
    for (const [i, state] of step) put(i, state);
    finish();
    return step.map(([i]) => i);
  }
  function finish() {
    exported = false;
    save();
    changed();
  }

  // ---- CSV: a cell that a spreadsheet would run as a formula gets an apostrophe, which reading takes away
  const cell = (text) => {
    const guarded = /^'*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(guarded) ? `"${guarded.replaceAll('"', '""')}"` : guarded;
  };
  function toCsv() {
    const lines = [COLUMNS.join(",")];
    for (let i = 0; i < size; i++) {
      if (!states[i]) continue;
      const values = [client(i), item(i), String(data.index[i]), data.classes[data.given[i]], name(states[i]), label(i)];
      lines.push(values.map(cell).join(","));
    }
    return lines.join("\r\n") + "\r\n";
  }
  function parse(text) {
    const rows = [[]];
    const pattern = /("(?:[^"]|"")*"|[^",\r\n]*)(,|\r\n|\n|\r|$)/gy;
    text = text.replace(/^\ufeff/, "");
    while (pattern.lastIndex < text.length) {
      const match = pattern.exec(text);
      if (!match) return null;  // a quote too many: nobody can tell which cells follow
      const raw = match[1].startsWith('"') ? match[1].slice(1, -1).replaceAll('""', '"') : match[1];
      rows.at(-1).push(/^'+[=+\-@\t\r]/.test(raw) ? raw.slice(1) : raw);
      if (match[2] !== "," && pattern.lastIndex < text.length) rows.push([]);
      if (match[2] === "," && pattern.lastIndex === text.length) rows.at(-1).push("");
    }
    return rows;
  }
  function fromCsv(text) {
    const table = parse(text);
    if (!table) return { error: "This file can’t be read as CSV: a quote (\") is out of place. Nothing was read; export it again." };
    const [head, ...lines] = table;
    const missing = COLUMNS.filter((column) => !head.includes(column));
    if (missing.length) return { error: `This is not a decisions file: it has no column ${missing[0]}.` };
    const at = Object.fromEntries(COLUMNS.map((column) => [column, head.indexOf(column)]));
    const key = (...parts) => JSON.stringify(parts);
    const rows = new Map(), classes = new Map(data.classes.map((text, c) => [text, c])), pairs = [];
    for (let i = 0; i < size; i++) rows.set(key(client(i), item(i), String(data.index[i]), data.classes[data.given[i]]), i);
    let foreign = 0;
    for (const line of lines.filter((line) => line.length > 1)) {
      const value = (column) => line[at[column]] ?? "";
      const i = rows.get(key(value("client"), value("item"), value("index"), value("given")));
      const kind = NAMES.indexOf(value("decision")), c = classes.get(value("label"));
      // An accepted label that this audit doesn't suggest is a change here.
      const state = kind === 1 && c !== undefined && c !== data.suggested[i] ? 4 + c : kind === 4 ? 4 + c : kind;
      if (i === undefined || kind < 1 || !valid(state)) foreign += 1; else pairs.push([i, state]);
    }
    return { read: pairs.length, foreign, rows: set(pairs) };
  }

  addEventListener("storage", (event) => {  // another window of the same audit
    const number = Number(event.key?.split("/")[1]);
    if (event.key !== null && event.key === `${PREFIX}/${number}`) { read(number, event.newValue || "{}"); changed(); }
  });
  addEventListener("beforeunload", (event) => { if (unsaved.size && !exported) event.preventDefault(); });
  load();
  return {
    data, counts, set, undo, label, item, client, name, toCsv, fromCsv,
    state: (i) => states[i], decided: () => Object.values(counts).reduce((a, b) => a + b),
    saved: () => unsaved.size === 0, steps: () => steps.length,
    exported: () => { exported = true; }, onChange: (call) => { changed = call; },
    remember: (value) => { try { localStorage.setItem(`${PREFIX}/view`, JSON.stringify(value)); } catch { /* as above */ } },
    remembered: () => { try { return JSON.parse(localStorage.getItem(`${PREFIX}/view`)) || {}; } catch { return {}; } },
  };
})();
