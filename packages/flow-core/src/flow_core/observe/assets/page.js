// Tables, tabs and search: puts the page together.

const number = (n) => n.toLocaleString("en");
const percent = (x) => (100 * x).toFixed(1) + " %";

// A column is [title, format, class]; `onRow` makes rows act on clicks and keys, `more` returns
// the text of a line below a row, and `by` is the column by which rows are sorted at first.
function table(columns, rows, {onRow, more, by = -1, totals} = {}) {
  const most = 1500;
  const body = element("tbody");
  let order = rows.map((_, i) => i), words = "", all = false;
  const largest = columns.map(([, , kind], k) =>
    (kind === "share" ? rows.reduce((most, row) => Math.max(most, row[k]), 0) : 0));
  function line(i) {
    const row = element("tr", onRow ? {class: "link"} : {});
    row.append(...columns.map(([, show, kind], k) => cell(rows[i][k], show, kind, largest[k])));
    if (onRow) active(row, () => onRow(i));
    const text = more ? more(i) : "";
    return text ? [row, element("tr", {class: "more"},
      [element("td", {text, colspan: columns.length})])] : [row];
  }
  function fill() {
    const wanted = order.filter((i) => !words
      || rows[i].some((cell) => String(cell).toLowerCase().includes(words)));
    body.replaceChildren(...wanted.slice(0, all ? Infinity : most).flatMap(line));
    if (!all && wanted.length > most)
      body.append(active(element("tr", {class: "link"}, [element("td",
        {text: `show all ${wanted.length} rows`, colspan: columns.length})]),
      () => { all = true; fill(); }));
  }
  function sort(k, sign) {
    order.sort((i, j) => {
      const [a, b] = [rows[i][k], rows[j][k]];
      return sign * (typeof a === "number" ? b - a : String(a).localeCompare(String(b)));
    });
    heads.forEach((head, i) => head.setAttribute("aria-sort",
      i !== k ? "none" : (typeof rows[0]?.[k] === "number") === (sign > 0)
        ? "descending" : "ascending"));
    fill();
  }
  const signs = columns.map(() => 1);
  const heads = columns.map(([name, , kind], k) => active(
    element("th", {text: name, class: kind || "", scope: "col", "aria-sort": "none"}),
    () => { sort(k, signs[k]); signs[k] = -signs[k]; }));
  fill();
  if (by >= 0) { sort(by, 1); signs[by] = -1; }
  const head = element("thead", {}, [element("tr", {}, heads)]);
  if (totals) head.append(element("tr", {class: "totals"},
    totals.map((text, k) => element("td", {text, class: columns[k][2] || ""}))));
  const made = element("table", {}, [head, body]);
  return {made, search: (text) => { words = text.toLowerCase(); fill(); }};
}

function cell(value, show, kind, largest) {
  const made = element("td", {text: show ? show(value) : value, class: kind || ""});
  if (kind === "share") made.prepend(element("i", {style: `width:${(60 * value / (largest || 1)).toFixed(1)}px`}));
  return made;
}

const stepTime = opTimes.reduce((a, b) => a + b, 0) || 1;
const opTable = table(
  [["op"], ["type"], [data.steps ? "time" : "predicted time", micros, "number"],
   ["share", percent, "share"], ["outputs"], ["placement"], ["SBP"], ["line", short]],
  ops.map((op) => [op.name, op.type, opTimes[op.id], opTimes[op.id] / stepTime, op.outputs,
    data.placements[op.placement], op.sbp, op.line]),
  {by: 2, onRow: (i) => { location.hash = "graph"; reveal(ops[i].node); }});

const moved = data.ledger.reduce((sum, row) => sum + row[4], 0);
const cost = data.ledger.reduce((sum, row) => sum + (row[4] ? row[5] : 0), 0);
const costOf = (row) => (row[4] && cost ? row[5] / cost : 0);
const ledger = table(
  [["value"], ["steps"], ["from", null, "whole"], ["to", null, "whole"],
   ["bytes", number, "number"], ["predicted", micros, "number"], ["share", percent, "share"],
   ["line", short]],
  data.ledger.map((row) => [...row.slice(0, 6), costOf(row), row[8]]),
  {by: 6, more: (i) => [data.ledger[i][6],
    data.ledger[i][7] && "instead: " + data.ledger[i][7].split("\n").join("; ")]
    .filter(Boolean).join(". "),
   totals: [`${data.ledger.length} entries`, "", "", "", number(moved), micros(cost),
     cost ? percent(1) : "", ""],
   onRow: (i) => {
     const name = data.ledger[i][0].replace(/:\d+$/, "");
     const op = ops.find((o) => o.name === name);
     if (op) { location.hash = "graph"; reveal(op.node); }
   }});
const linkTable = table([["link"], ["bytes per step", number, "number"]], data.links, {by: 1});
const classes = table(
  [["class of ops"], ["tasks", number, "number"],
   [data.steps ? "time" : "predicted time", micros, "number"], ["share", percent, "share"],
   ["op types"]],
  data.classes, {by: 2});

const streams = table(
  [["stream"], ["tasks", number, "number"], ["that wait", number, "number"], ["for streams"]],
  data.streams);
const flows = table(
  [["from", null, "whole"], ["value"], ["to"], ["slots", number, "number"]], data.flows);

// -------------------------------------------------------------------------------- page

function button(text, action) { return element("button", {text, onclick: action}); }
function legend(rows) {
  return element("div", {class: "legend"}, rows.map(([color, text]) => element("span", {}, [
    element("i", {style: `background:${color}`}), document.createTextNode(text)])));
}

function openAll(wanted) {
  for (const node of nodes) if (node.op < 0) node.open = wanted || node === root;
  place();
  fit();
  choose(null);
}

graphBox.append(
  element("div", {class: "tools"}, [
    button("fit", () => { fit(); graph.paint(); }),
    button("+", () => { graph.zoom(1.3); graph.paint(); }),
    button("−", () => { graph.zoom(1 / 1.3); graph.paint(); }),
    button("open all", () => openAll(true)), button("close all", () => openAll(false)),
  ]),
  legend([...data.placements.slice(0, 8).map((text, i) => [COLORS[i % COLORS.length], text]),
    ["var(--several)", "several"], ["var(--boxing)", "boxing"]]));
memoryBox.append(element("div", {class: "tools"}, [arenaChoice]),
  legend([...Object.entries(KINDS).map(([kind, color]) => [color, kind]),
    ["var(--live)", "bytes in use"]]));
timeBox.append(legend([["var(--boxing)", "transfers"],
  [COLORS[0], "other colors: one per kernel"]]));
timeBox.style.flex = `0 0 min(60%, ${lanes.length * 70 + MARGIN.top + MARGIN.bottom}px)`;
const timeSection = element("div", {class: "split"}, [
  ...(data.spans.length ? [timeBox] : []),
  element("div", {class: "rows"}, [element("p", {text: data.steps
    ? `Each duration is the median of the measured steps (${data.steps}), on random inputs.`
    : "No step was measured; durations are predictions for one core."}), classes.made])]);

const sections = {
  graph: ["Graph", [graphBox, side], graph],
  ops: ["Ops", [element("div", {class: "rows"}, [opTable.made])]],
  ledger: ["Ledger", [element("div", {class: "rows"}, data.ledger.length ? [ledger.made,
    element("p", {text: "bytes per pair of devices"}), linkTable.made] : [element("div", {class: "empty", text: "Nothing crosses devices."})])]],
  streams: ["Streams", [element("div", {class: "rows"}, data.streams.length
    ? [element("p", {text: `${data.streams.length} streams, ${data.threads}`}), streams.made,
      ...(data.flows.length ? [element("p", {text: "registers between streams"}), flows.made]
        : [])]
    : [element("div", {class: "empty", text: "All tasks are of one stream."})])]],
  memory: ["Memory", [memoryBox], memory],
  timeline: ["Time", [timeSection], time],
};
const tabs = {}, shownSections = {};
const search = element("input", {type: "search", placeholder: "search ops   ( / )",
  "aria-label": "search"});
const main = element("main");
for (const [name, [label, children]] of Object.entries(sections)) {
  tabs[name] = element("button", {text: label, role: "tab", "aria-controls": `section-${name}`,
    onclick: () => { location.hash = name; }});
  shownSections[name] = element("section", {id: `section-${name}`, role: "tabpanel"}, children);
  main.append(shownSections[name]);
}

function select(wanted) {
  for (const [name, section] of Object.entries(shownSections)) {
    section.classList.toggle("shown", name === wanted);
    tabs[name].setAttribute("aria-selected", String(name === wanted));
    tabs[name].tabIndex = name === wanted ? 0 : -1;
  }
  const drawing = sections[wanted][2];
  if (drawing) drawing.resize();
}

let results = [], at = -1;
function look() {
  const words = search.value.trim().toLowerCase();
  opTable.search(words);
  ledger.search(words);
  flows.search(words);
  results = words ? ops.filter((op) => (op.name + " " + op.type + " " + op.line).toLowerCase()
    .includes(words)) : [];
  found = new Set(results.map((op) => shown(op.node)));
  at = -1;
  graph.paint();
}
search.addEventListener("input", look);
search.addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || !results.length) return;
  at = (at + (e.shiftKey ? results.length - 1 : 1)) % results.length;
  location.hash = "graph";
  reveal(results[at].node);
  found = new Set(results.map((op) => shown(op.node)));
});
addEventListener("keydown", (e) => {
  if (e.key === "/" && document.activeElement !== search) { e.preventDefault(); search.focus(); }
  if (e.key === "Escape") { search.value = ""; look(); choose(null); }
  const names = Object.keys(sections), here = document.activeElement;
  const now = names.findIndex((name) => tabs[name] === here);
  if (now >= 0 && (e.key === "ArrowRight" || e.key === "ArrowLeft")) {
    const next = names[(now + (e.key === "ArrowRight" ? 1 : names.length - 1)) % names.length];
    location.hash = next;
    tabs[next].focus();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readTheme();
  for (const drawing of [graph, memory, time]) drawing.now();
});

document.body.append(
  element("header", {}, [
    element("div", {}, [element("h1", {text: data.title}),
      element("span", {class: "where", text: data.line})]),
    element("div", {class: "facts"}, data.facts.map(([label, text]) =>
      element("span", {text: label}, [element("b", {text})]))),
    element("nav", {role: "tablist"}, [...Object.values(tabs), search]),
  ]), main, tip);

detail(null);
let begun = false;
graph.resized = () => { if (!begun) { begun = true; begin(); } };
function follow() {
  const [name, op] = decodeURIComponent(location.hash.slice(1)).split("?op=");
  select(name in sections ? name : "graph");
  if (!begun) begin();
  const wanted = op && ops.find((o) => o.name === op);
  if (wanted) reveal(wanted.node);
  graph.now();
  memory.now();
  time.now();
}
addEventListener("hashchange", follow);
follow();
document.body.dataset.ready = "yes";
