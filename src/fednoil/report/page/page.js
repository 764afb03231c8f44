"use strict";
// The report's page: sorting, filtering, curves, clients, labels, runs. Sections are drawn when they come into view.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { $, make, options, sortBy, square } = Page;
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const MOST_LINES = 36;
  const PAPER = 620;  // pixels that fit between the margins of A4 and Letter
  const WHOLE = [...Array(9).keys()].flatMap((e) => [1, 2, 5].map((n) => n * 10 ** e));  // no round 2.5
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const method = (run) => data.methods[run.method];
  const where = (run) => data.settings[run.where];
  const title = (run) => `${where(run)}: ${method(run)}, seed ${run.seed}`;

  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

  // ---- wide tables say that there is more
  function hintScroll() {
    for (const box of document.querySelectorAll(".scroll")) {
      box.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
    }
  }
  for (const box of document.querySelectorAll(".scroll")) box.addEventListener("scroll", hintScroll, { passive: true });
  new ResizeObserver(hintScroll).observe(document.body);

  // ---- filter: every word must occur
  let words = [];
  const matches = (text) => words.every((word) => text.toLowerCase().includes(word));
  function applyFilter() {
    words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll(".sheet tbody tr")) {
      const heading = row.closest("table").parentElement.previousElementSibling.textContent;
      const columns = [...row.closest("table").tHead.rows[0].cells].map((c) => c.textContent).join(" ");
      row.hidden = !matches(`${row.cells[0].textContent} ${heading} ${columns}`);
    }
    for (const row of document.querySelectorAll(".filterable tbody tr")) row.hidden = !matches(row.textContent);
    if (drawn.has("runs")) filterRuns();
    if (drawn.has("curves")) drawCurves();
  }

  // ---- curves
  let chart = null;
  function group(runs) {
    const each = $("curve-lines").value === "each", lines = new Map();
    for (const run of runs) {
      const several = $("curve-where").value === "all" ? `${where(run)}: ` : "";
      const name = several + method(run) + (each ? `, seed ${run.seed}` : "");
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push(run);
    }
    for (const [name, some] of lines) {  // a run that was stopped would cut the others' mean short
      if (some.some((run) => run.summary.finished)) lines.set(name, some.filter((run) => run.summary.finished));
    }
    return lines;
  }
  function meanCurve(runs, key, over) {
    const points = new Map();  // round -> [sum of x, sum of y, how many, sum of y²]
    for (const run of runs) {
      const { round, [key]: ys, [over]: xs } = run.curves;
      if (!ys) continue;
      round.forEach((r, i) => {
        if (ys[i] === null) return;
        const point = points.get(r) || [0, 0, 0, 0];
        points.set(r, [point[0] + xs[i], point[1] + ys[i], point[2] + 1, point[3] + ys[i] * ys[i]]);
      });
    }
    const all = [...points.values()].filter((p) => p[2] === runs.length);
    const spread = (p) => (p[2] < 2 ? 0 : Math.sqrt(Math.max(0, (p[3] - p[1] * p[1] / p[2]) / (p[2] - 1))));
    return [all.map((p) => p[0] / p[2]), all.map((p) => p[1] / p[2]), all.map(spread)];
  }
  // Mean ± standard deviation over seeds, as a band behind each line that is shown.
  function bands(tables) {
    return (u) => tables.forEach(([xs, ys, spreads], i) => {
      if (!u.series[i + 1].show || !spreads.some((s) => s > 0)) return;
      const at = (j, sign) => [u.valToPos(xs[j], "x", true), u.valToPos(ys[j] + sign * spreads[j], "y", true)];
      const edge = [...xs.map((_, j) => at(j, 1)), ...xs.map((_, j) => at(xs.length - 1 - j, -1))];
      u.ctx.save();
      u.ctx.beginPath();
      edge.forEach(([x, y], j) => (j ? u.ctx.lineTo(x, y) : u.ctx.moveTo(x, y)));
      u.ctx.globalAlpha = 0.16;
      u.ctx.fillStyle = COLOURS[i % 6];
      u.ctx.fill();
      u.ctx.restore();
    });
  }
  function limits(tables) {
    let low = Infinity, high = -Infinity;
    for (const [, ys, spreads] of tables) {
      ys.forEach((y, j) => { low = Math.min(low, y - spreads[j]); high = Math.max(high, y + spreads[j]); });
    }
    return (u, least, most) => uPlot.rangeNum(Math.min(low, least ?? low), Math.max(high, most ?? high), 0.06, true);
  }
  function drawCurves() {
    const key = $("curve-key").value, over = $("curve-over").value, at = $("curve-where").value;
    const runs = data.runs.filter((run) => (at === "all" || run.where === Number(at)) && key in run.curves);
    let lines = [...group(runs.filter((run) => matches(title(run))))];
    const total = lines.length;
    lines = lines.slice(0, MOST_LINES);
    $("curve-note").textContent = total > lines.length
      ? `${lines.length} of ${total} lines; choose a setting or filter to see the others`
      : total ? `${total} line${total === 1 ? "" : "s"}; click a name below to hide it` : "no run matches";
    if (chart) chart.destroy();
    chart = null;
    if (!total) return;
    const tables = lines.map(([, some]) => meanCurve(some, key, over));
    const thin = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--soft"), grid: thin, ticks: thin };
    chart = new uPlot({
      width: $("curve-chart").clientWidth, height: 360, scales: { x: { time: false }, y: { range: limits(tables) } },
      hooks: { drawAxes: [bands(tables)] },
      axes: [{ ...axis, label: over === "round" ? "round" : "training batches", incrs: WHOLE }, { ...axis, label: data.curves[key] }],
      series: [{ label: over === "round" ? "round" : "batches" }, ...lines.map(([name], i) => ({
        label: name, stroke: COLOURS[i % 6], dash: DASHES[Math.floor(i / 6) % 4], width: 1.6, spanGaps: true,
        value: (_, v) => (v === null || v === undefined ? "–" : v.toFixed(2)), points: { show: tables[i][0].length < 3 },
      }))],
      cursor: { focus: { prox: 24 } }, focus: { alpha: 0.25 },
    }, uPlot.join(tables.map(([xs, ys]) => [xs, ys])), $("curve-chart"));
    $("curve-chart").dataset.bands = tables.filter(([, , spreads]) => spreads.some((s) => s > 0)).length;
  }
  function setUpCurves() {
    const first = data.settings.map((text, i) => [i, text]);
    options($("curve-where"), data.settings.length > 1 ? [...first, ["all", "all settings"]] : first);
    const keys = Object.keys(data.curves).filter((k) => k !== "train_batches" && data.runs.some((r) => k in r.curves));
    options($("curve-key"), keys.map((k) => [k, data.curves[k]]));
    for (const id of ["curve-where", "curve-key", "curve-over", "curve-lines"]) $(id).onchange = drawCurves;
    drawCurves();
  }

  // ---- clients
  function drawClients() {
    const run = data.runs[$("client-run").value], clients = run.clients, count = clients.selected.length;
    const estimate = clients.share || clients.agreement;
    const what = clients.share ? "estimated clean share (its score)" : "share of labels the final model agrees with";
    const chartArea = $("client-chart");
    chartArea.replaceChildren();
    $("client-note").textContent = worst(run, estimate, what);
    if (clients.noise && estimate) chartArea.append(scatter(clients, estimate, what));
    chartArea.style.minHeight = clients.noise && estimate ? "" : "0";
    const columns = [["client", clients.names ?? clients.selected.map((_, k) => k)], ["samples", clients.samples],
      ["true noise, %", clients.noise], ["labels wrong, estimated, %", clients.wrong], ["estimated clean, %", clients.share],
      ["agreement, %", clients.agreement], ["rounds selected", clients.selected],
      ["agreement with held-out labels, %", clients.held_out], ["own test samples, %", clients.tested],
      ["balanced, %", clients.balanced]].filter(([, values]) => values);
    const table = make("table", { class: "sortable" },
      make("thead", {}, make("tr", {}, ...columns.map(([text]) => make("th", { tabindex: 0 }, text)))));
    const body = make("tbody");
    for (let k = 0; k < count; k++) {
      body.append(make("tr", {}, ...columns.map(([, values]) => values[k]).map((v) =>
        v === undefined || v === null ? make("td", { class: "none" }, "–")
          : make("td", typeof v === "number" ? { "data-v": v } : {}, String(v)))));
    }
    table.append(body);
    for (const heading of table.tHead.rows[0].cells) heading.addEventListener("click", () => sortBy(heading));
    $("client-table").replaceChildren(table);
  }
  function worst(run, estimate, what) {
    const { noise, selected, names } = run.clients, rounds = run.summary.rounds;
    const fair = selected.reduce((a, b) => a + b, 0) / selected.length;
    const by = noise || (estimate && estimate.map((v) => v === null ? -1 : 100 - v));
    const chosen = `clients were selected ${Math.min(...selected)} to ${Math.max(...selected)} times`;
    if (!by) return `In ${rounds} rounds ${chosen}; nothing is recorded about their labels.`;
    const k = by.indexOf(Math.max(...by));
    const known = noise ? `${number(noise[k], 1)} % wrong labels` : "least trusted labels";
    const guess = estimate ? `; ${what}: ${number(estimate[k], 1)} %` : "";
    return `Worst client: ${names?.[k] ?? k}, ${known}, selected in ${selected[k]} of ${rounds} rounds (on average ${number(fair, 1)})${guess}.`;
  }
  function scatter(clients, estimate, what) {
    const size = [Math.min(640, $("client-chart").clientWidth), 330], pad = [54, 14, 44, 14];
    const x = (v) => pad[0] + (v / 100) * (size[0] - pad[0] - pad[1]);
    const y = (v) => size[1] - pad[2] - (v / 100) * (size[1] - pad[2] - pad[3]);
    const svg = make("svg", { width: size[0], height: size[1], role: "img", "aria-label": `true noise against ${what}` });
    for (const v of [0, 25, 50, 75, 100]) {
      svg.append(make("line", { class: "grid", x1: x(v), x2: x(v), y1: y(0), y2: y(100) }),
        make("line", { class: "grid", x1: x(0), x2: x(100), y1: y(v), y2: y(v) }),
        make("text", { x: x(v), y: y(0) + 16, "text-anchor": "middle" }, String(v)),
        make("text", { x: x(0) - 6, y: y(v) + 4, "text-anchor": "end" }, String(v)));
    }
    svg.append(make("line", { class: "axis", x1: x(0), y1: y(100), x2: x(100), y2: y(0), "stroke-dasharray": "5 4" }),
      make("text", { x: (x(0) + x(100)) / 2, y: size[1] - 8, "text-anchor": "middle" }, "true noise, %"),
      make("text", { transform: `translate(14 ${(y(0) + y(100)) / 2}) rotate(-90)`, "text-anchor": "middle" }, `${what}, %`));
    const most = Math.max(1, ...clients.selected);
    clients.noise.forEach((noise, k) => {
      if (estimate[k] === null) return;
      const radius = 3 + 8 * Math.sqrt(clients.selected[k] / most);
      const text = `client ${k}: ${noise} % wrong, ${estimate[k]} %, selected ${clients.selected[k]} times`;
      svg.append(make("circle", { cx: x(noise), cy: y(estimate[k]), r: radius, fill: COLOURS[0], "fill-opacity": 0.55,
        stroke: COLOURS[0] }, make("title", {}, text)));
    });
    return svg;
  }

  // ---- labels
  function drawConfusion() {
    const run = data.runs[$("confusion-run").value], found = run.confusion, place = $("confusion-table");
    const named = (c) => data.classes[run.classes][c] ?? String(c);
    drawTested(run.tested, named);
    if (!found) return place.replaceChildren(make("p", { class: "key" }, "This run has no record of them."));
    if (found.largest) {
      const rows = found.largest.map(([g, p, n]) => make("tr", {}, ...[named(g), named(p), n].map((v) => make("td", {}, String(v)))));
      const head = ["given", "predicted", "samples"].map((text) => make("th", {}, text));
      return place.replaceChildren(make("p", { class: "key" }, `${found.classes} classes; the most frequent disagreements:`),
        make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
    }
    place.replaceChildren(square(found.matrix, found.matrix.map((_, c) => named(c)), "given \\ predicted"));
  }

  function drawTested(tested, named) {
    const place = $("tested-table");
    if (!tested) return place.replaceChildren();
    const columns = [["recall, %", "recall"], ["precision, %", "precision"], ["F1, %", "f1"], ["AUROC", "auroc"]];
    const head = ["class", ...columns.map(([text]) => text)].map((text) => make("th", {}, text));
    const rows = tested.matrix.map((_, c) => make("tr", {}, make("th", { scope: "row" }, named(c)),
      ...columns.map(([, key]) => make("td", {}, tested.classes[key]?.[c]?.toFixed(key === "auroc" ? 3 : 1) ?? "–"))));
    place.replaceChildren(make("h3", {}, "Test samples"),
      square(tested.matrix, tested.matrix.map((_, c) => named(c)), "class \\ predicted"),
      make("p", { class: "key" }, "By class, on the test samples:"),
      make("table", { class: "grid" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }

  // ---- runs
  function setUpRuns() {
    const body = $("runs-table").tBodies[0], escape = document.createElement("span");
    const text = (value) => { escape.textContent = value; return escape.innerHTML; };
    const cell = (value, digits) => (value === null || value === undefined ? '<td class="none">–</td>'
      : `<td data-v="${value}">${digits === undefined ? value : value.toFixed(digits)}</td>`);
    body.innerHTML = data.runs.map((run, i) => {
      const s = run.summary, state = s.converged === null ? "–" : s.converged ? "yes" : "no";
      return `<tr data-run="${i}" tabindex="0"><td>${text(method(run))}</td><td>${text(where(run))}</td>${cell(run.seed)}` +
        `<td data-v="${s.rounds}">${s.rounds}${s.finished ? "" : ` of ${s.planned}`}</td>${cell(s.final_accuracy, 2)}` +
        `${cell(s.best_accuracy, 2)}${cell(s.last10_accuracy, 2)}<td>${state}</td>${cell(s.train_batches)}${cell(s.wall_s, 0)}<td>${text(s.conduct)}</td></tr>`;
    }).join("");
    body.addEventListener("click", (event) => showRun(event.target.closest("tr")));
    body.addEventListener("keydown", (event) => event.key === "Enter" && showRun(event.target.closest("tr")));
    filterRuns();
  }
  function filterRuns() {
    let shown = 0;
    for (const row of $("runs-table").tBodies[0].rows) {
      const run = data.runs[row.dataset.run];
      row.hidden = !matches(`${title(run)} ${run.name}`);
      shown += !row.hidden;
    }
    $("runs-note").textContent = `${shown} of ${data.runs.length} runs. Choose one for its command, settings and environment.`;
  }
  function showRun(row) {
    const i = Number(row.dataset.run), run = data.runs[i], box = $("run-details");
    const lines = (value) => Object.entries(value).map(([section, keys]) => (keys !== null && typeof keys === "object"
      ? `[${section}]\n` + Object.entries(keys).filter(([, v]) => v !== null)
        .map(([k, v]) => `${k} = ${JSON.stringify(v)}`).join("\n") : `${section} = ${JSON.stringify(keys)}`)).join("\n");
    const block = (name, text) => [make("h3", {}, name), make("pre", {}, text || "not recorded")];
    box.replaceChildren(make("h3", {}, title(run)), make("p", { class: "key" }, run.path), ...block("Command", run.command),
      ...block("Summary and hashes", lines(run.summary)), ...block("Settings", lines(data.configs[run.config])),
      ...block("Environment", lines(data.environments[run.environment])));
    box.hidden = false;
    for (const [id, draw] of [["client-run", drawClients], ["confusion-run", drawConfusion]]) {
      if (drawn.has(id.split("-")[0] === "client" ? "clients" : "confusion")) { $(id).value = i; draw(); }
    }
    box.scrollIntoView({ block: "nearest" });
  }

  // ---- a section is made when it comes near the window
  const drawn = new Set();
  const runOptions = (id, draw, recorded) => () => {
    options($(id), data.runs.map((run, i) => [i, title(run)]));
    $(id).value = Math.max(0, data.runs.findIndex(recorded));  // the first that has something to show
    $(id).onchange = draw;
    draw();
  };
  const sections = { curves: setUpCurves, clients: runOptions("client-run", drawClients, (run) => run.clients.noise || run.clients.wrong),
    confusion: runOptions("confusion-run", drawConfusion, (run) => run.confusion), runs: setUpRuns };
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !drawn.has(target.id)) { drawn.add(target.id); sections[target.id](); }
    }
  }, { rootMargin: "300px" });
  for (const id of Object.keys(sections)) observer.observe($(id));
  addEventListener("beforeprint", () => {  // on paper everything is looked at
    for (const id of Object.keys(sections)) if (!drawn.has(id)) { drawn.add(id); sections[id](); }
    if (chart) chart.setSize({ width: Math.min(PAPER, chart.width), height: chart.height });
  });
  addEventListener("afterprint", () => drawn.has("curves") && drawCurves());
  // ---- a page that is written again loads itself again, and stays where it was
  if (document.body.hasAttribute("data-watched")) setTimeout(() => location.reload(), 5000);
  let timer = 0;
  $("filter").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(applyFilter, 120); });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar changes the height alone
    width = innerWidth;
    if (drawn.has("curves")) drawCurves();
    if (drawn.has("clients")) drawClients();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.has("curves") && drawCurves());
})();
