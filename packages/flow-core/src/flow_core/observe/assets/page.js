// Tables, tabs and search: puts the page together.

function table(columns, rows, onRow) {
  const most = 1500;
  const body = element("tbody");
  let order = rows.map((_, i) => i), words = "", all = false;
  function fill() {
    const wanted = order.filter((i) => !words
      || rows[i].some((cell) => String(cell).toLowerCase().includes(words)));
    body.replaceChildren(...wanted.slice(0, all ? Infinity : most).map((i) => {
      const row = element("tr", onRow ? {class: "link", onclick: () => onRow(i)} : {});
      row.append(...columns.map(([, show, kind], k) => element("td",
        {text: show ? show(rows[i][k]) : rows[i][k], class: kind || ""})));
      return row;
    }));
    if (!all && wanted.length > most)
      body.append(element("tr", {class: "link", onclick: () => { all = true; fill(); }}, [
        element("td", {text: `show all ${wanted.length} rows`, colspan: columns.length})]));
  }
  const head = element("tr", {}, columns.map(([name], k) => element("th", {text: name,
    onclick: () => {
      const sign = head.dataset.by === String(k) ? -1 : 1;
      head.dataset.by = sign < 0 ? "" : k;
      order.sort((i, j) => {
        const [a, b] = [rows[i][k], rows[j][k]];
        return sign * (typeof a === "number" ? b - a : String(a).localeCompare(String(b)));
      });
      fill();
    }})));
  fill();
  const made = element("table", {}, [element("thead", {}, [head]), body]);
  return {made, search: (text) => { words = text.toLowerCase(); fill(); }};
}

const opTable = table(
  [["op"], ["type"], ["outputs"], ["placement"], ["SBP"], ["line"]],
  ops.map((op) => [op.name, op.type, op.outputs, data.placements[op.placement], op.sbp, op.line]),
  (i) => { select("graph"); reveal(ops[i].node); });
const number = (n) => n.toLocaleString("en");
const ledger = table(
  [["value"], ["steps"], ["from", null, "whole"], ["to", null, "whole"],
   ["bytes", number, "number"],
   ["predicted", micros, "number"], ["why"], ["instead", null, "lines"], ["line"]],
  data.ledger,
  (i) => {
    const name = data.ledger[i][0].replace(/:\d+$/, "");
    const op = ops.find((o) => o.name === name);
    if (op) { select("graph"); reveal(op.node); }
  });


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
  start();
  choose(null);
}

graphBox.append(
  element("div", {class: "tools"}, [
    button("fit", () => { fit(); graph.paint(); }),
    button("+", () => { graph.zoom(1.3); graph.paint(); }),
    button("−", () => { graph.zoom(1 / 1.3); graph.paint(); }),
    button("open all", () => openAll(true)), button("close all", () => openAll(false)),
  ]),
  legend([...data.placements.slice(0, 10).map((text, i) => [COLORS[i % COLORS.length], text]),
    ["#9aa7b5", "several"], [BOXING, "boxing"]]));
memoryBox.append(element("div", {class: "tools"}, [arenaChoice]),
  legend([...Object.entries(KINDS).map(([kind, color]) => [color, kind]),
    ["#b42318", "bytes in use"]]));
timeBox.append(legend([[BOXING, "transfers"], [COLORS[0], "other colours: one per kernel"]]));

const sections = {
  graph: ["Graph", [graphBox, side], graph],
  ops: ["Ops", [element("div", {class: "rows"}, [opTable.made])]],
  ledger: ["Ledger", [element("div", {class: "rows"}, data.ledger.length ? [ledger.made]
    : [element("div", {class: "empty", text: "Nothing crosses devices."})])]],
  streams: ["Streams", [element("div", {class: "rows"}, data.streams.length
    ? [element("p", {text: `${data.streams.length} streams, ${data.threads}`}), streams.made,
      ...(data.flows.length ? [element("p", {text: "registers between streams"}), flows.made]
        : [])]
    : [element("div", {class: "empty", text: "All tasks are of one stream."})])]],
  memory: ["Memory", [memoryBox], memory],
  timeline: ["Timeline", data.spans.length ? [timeBox]
    : [element("div", {class: "empty", text: "No step was measured."})], time],
};
const tabs = {}, shownSections = {};
const search = element("input", {type: "search", placeholder: "search ops   ( / )",
  "aria-label": "search"});
const main = element("main");
for (const [name, [label, children]] of Object.entries(sections)) {
  tabs[name] = element("button", {text: label, role: "tab",
    onclick: () => { location.hash = name; }});
  shownSections[name] = element("section", {id: name}, children);
  main.append(shownSections[name]);
}

function select(wanted) {
  for (const [name, section] of Object.entries(shownSections)) {
    section.classList.toggle("shown", name === wanted);
    tabs[name].setAttribute("aria-selected", String(name === wanted));
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
});

document.body.append(
  element("header", {}, [
    element("div", {}, [element("h1", {text: data.title}),
      element("span", {class: "where", text: data.line})]),
    element("div", {class: "facts"}, data.facts.map(([label, text]) =>
      element("span", {text: label}, [element("b", {text})]))),
    element("nav", {role: "tablist"}, [...Object.values(tabs), search]),
  ]), main, tip);

openFirst();
place();
detail(null);
let begun = false;
graph.resized = () => { if (!begun) { begun = true; start(); } };
function follow() {
  const [name, op] = decodeURIComponent(location.hash.slice(1)).split("?op=");
  select(name in sections ? name : "graph");
  const wanted = op && ops.find((o) => o.name === op);
  if (wanted) reveal(wanted.node);
  graph.now();
  memory.now();
  time.now();
}
addEventListener("hashchange", follow);
follow();
document.body.dataset.ready = "yes";
