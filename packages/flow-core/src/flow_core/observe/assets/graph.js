// The graph: scopes that open and close, ops, and what goes between them.

const nodes = data.nodes.map(([label, op, parent, layer, order], id) => (
  {id, label, op, parent, layer, order, children: [], open: false, count: op >= 0 ? 1 : 0,
   x: 0, y: 0, w: 0, h: 0}));
const ops = data.ops.map(([name, type, outputs, placement, sbp, line], id) => (
  {id, name, type, outputs, placement, sbp, line, node: null, ins: [], outs: []}));
for (const node of nodes) {
  if (node.parent >= 0) nodes[node.parent].children.push(node);
  if (node.op >= 0) ops[node.op].node = node;
}
for (let i = nodes.length - 1; i > 0; i--) nodes[nodes[i].parent].count += nodes[i].count;
for (const node of nodes) {
  if (node.op >= 0) node.placement = ops[node.op].placement;
  node.rows = [];
  for (const child of node.children) (node.rows[child.layer] ||= []).push(child);
  for (const row of node.rows) row.sort((a, b) => a.order - b.order);
}
for (let i = nodes.length - 1; i > 0; i--) {
  const above = nodes[nodes[i].parent];
  above.placement = above.placement === undefined || above.placement === nodes[i].placement
    ? nodes[i].placement : -1;
}
const links = data.edges.map(([from, to, have, want, moved]) => ({from, to, have, want, moved}));
for (const link of links) { ops[link.from].outs.push(link); ops[link.to].ins.push(link); }

const root = nodes[0];
const GAP_X = 18, GAP_Y = 44, PAD = 12, HEAD = 26, MOST_OPEN = 150, LEGIBLE = 0.75,
  WIDE = 1500, FAR = 0.1;

// Scopes are opened level by level, as long as there is not too much to see.
function openFirst() {
  root.open = true;
  let level = root.children;
  while (level.length) {
    const inside = level.flatMap((node) => node.children);
    if (inside.length > MOST_OPEN && level !== root.children) return;
    for (const node of level) node.open = node.op < 0;
    level = inside;
  }
}

const ruler = document.createElement("canvas").getContext("2d");
function size(node) {
  if (node.op >= 0 || !node.open) {
    ruler.font = "600 13px " + FONT;
    const first = ruler.measureText(node.label).width;
    ruler.font = "11px " + FONT;
    const second = ruler.measureText(below(node)).width;
    node.w = Math.min(Math.max(first, second, 50) + 26, 230);
    node.h = 44;
    return;
  }
  for (const child of node.children) size(child);
  if (node === root) { columns(node); return; }
  let rows = node.rows.flatMap(wrapped);
  if (node.parent === 0 && node.label === "backward") rows = rows.reverse();
  const widths = rows.map((row) => row.reduce((w, n) => w + n.w + GAP_X, -GAP_X));
  const inner = Math.max(...widths);
  let y = HEAD + PAD;
  rows.forEach((row, i) => {
    let x = PAD + (inner - widths[i]) / 2;
    const tall = Math.max(...row.map((n) => n.h));
    for (const child of row) {
      child.x = x;
      child.y = y + (tall - child.h) / 2;
      x += child.w + GAP_X;
    }
    y += tall + GAP_Y;
  });
  ruler.font = "600 13px " + FONT;
  node.w = Math.max(inner, ruler.measureText(title(node)).width + 10) + 2 * PAD;
  node.h = y - GAP_Y + PAD;
}

// A row that open scopes have made too wide, as several.
function wrapped(row) {
  const found = [[]];
  let wide = 0;
  for (const node of row) {
    if (wide && wide + node.w > WIDE) { found.push([]); wide = 0; }
    found[found.length - 1].push(node);
    wide += node.w + GAP_X;
  }
  return found;
}

// Forward, backward and update side by side: gradients are about as high as what they are of.
function columns(node) {
  let x = 0;
  const tall = Math.max(...node.children.map((n) => n.h));
  for (const child of node.children) {
    child.x = x;
    child.y = child.label === "backward" ? tall - child.h : 0;
    x += child.w + 70;
  }
  node.w = x - 70;
  node.h = tall;
}

function title(node) { return node.label + "  ·  " + node.count + " ops"; }
function below(node) {
  if (node.op < 0) return node.count + " ops";
  const op = ops[node.op];
  return op.type === node.label ? op.outputs : op.type + "  " + op.outputs;
}

let visible = [], drawn = [];
function place() {
  size(root);
  visible = [];
  const stack = [[root, 0, 0]];
  while (stack.length) {
    const [node, x, y] = stack.pop();
    node.ax = x + node.x;
    node.ay = y + node.y;
    visible.push(node);
    if (node.open) for (const child of node.children) stack.push([child, node.ax, node.ay]);
  }
  drawn = joinedLinks();
  visible.sort((a, b) => a.id - b.id);
}

function shown(node) {
  let found = node;
  for (let up = node; up.parent >= 0; up = nodes[up.parent])
    if (!nodes[up.parent].open) found = nodes[up.parent];
  return found;
}

function joinedLinks() {
  const found = new Map();
  const seen = new Map();
  const top = (op) => {
    if (!seen.has(op)) seen.set(op, shown(ops[op].node));
    return seen.get(op);
  };
  for (const link of links) {
    const a = top(link.from), b = top(link.to);
    if (a === b) continue;
    const key = a.id * nodes.length + b.id;
    let joined = found.get(key);
    if (!joined) {
      joined = {a, b, count: 0, moved: -1, labels: new Set()};
      joined.far = phase(a) !== phase(b);
      joined.faint = joined.far && phase(b).label === "update";
      found.set(key, joined);
    }
    joined.count += 1;
    if (link.moved >= 0) joined.moved = Math.max(joined.moved, 0) + link.moved;
    if (joined.labels.size < 3)
      joined.labels.add(link.have === link.want || link.moved < 0
        ? link.have : link.have + " → " + link.want);
  }
  return [...found.values()];
}

function phase(node) {
  while (node.parent > 0) node = nodes[node.parent];
  return node;
}

let chosen = null;
function ends(link) {
  const {a, b} = link;
  if (link.far) {
    const right = b.ax >= a.ax + a.w;
    return [right ? a.ax + a.w : a.ax, a.ay + a.h / 2, right ? b.ax : b.ax + b.w,
            b.ay + b.h / 2];
  }
  if (b.ay >= a.ay + a.h) return [a.ax + a.w / 2, a.ay + a.h, b.ax + b.w / 2, b.ay];
  return [a.ax + a.w / 2, a.ay, b.ax + b.w / 2, b.ay + b.h];
}

function drawLink(c, link, scale, near) {
  const [x1, y1, x2, y2] = ends(link);
  const bend = link.far ? Math.abs(x2 - x1) * 0.4 : Math.max(Math.abs(y2 - y1) * 0.42, 12);
  const sign = link.far ? Math.sign(x2 - x1) : Math.sign(y2 - y1);
  c.beginPath();
  c.moveTo(x1, y1);
  if (link.far) c.bezierCurveTo(x1 + sign * bend, y1, x2 - sign * bend, y2, x2, y2);
  else c.bezierCurveTo(x1, y1 + sign * bend, x2, y2 - sign * bend, x2, y2);
  c.strokeStyle = link.moved >= 0 ? BOXING : "#8796a8";
  c.globalAlpha = near ? 1 : link.faint ? 0.06 : chosen ? 0.13 : link.far ? 0.18
    : link.moved >= 0 ? 0.85 : 0.6;
  c.lineWidth = (near ? 2 : link.moved > 0 ? 1.7 : 1.1) / Math.min(scale, 1);
  c.setLineDash(link.moved === 0 ? [5, 3] : []);
  c.stroke();
  c.setLineDash([]);
  if (scale > 0.35) arrow(c, x2, y2, link.far ? [sign, 0] : [0, sign]);
  c.globalAlpha = 1;
  if (link.far) return [(x1 + x2) / 2, (y1 + y2) / 2];
  // in the gap below the maker, where long edges pass over no other box
  const t = Math.max(0.25, Math.min(0.5, 45 / (Math.abs(y2 - y1) + 1))), u = 1 - t;
  return [u * u * (1 + 2 * t) * x1 + t * t * (3 - 2 * t) * x2,
    u * u * u * y1 + 3 * u * u * t * (y1 + sign * bend) + 3 * u * t * t * (y2 - sign * bend)
      + t * t * t * y2];
}

function arrow(c, x, y, [dx, dy]) {
  c.fillStyle = c.strokeStyle;
  c.beginPath();
  c.moveTo(x, y);
  c.lineTo(x - 6 * dx - 3 * dy, y - 6 * dy - 3 * dx);
  c.lineTo(x - 6 * dx + 3 * dy, y - 6 * dy + 3 * dx);
  c.fill();
}

function labelOf(link) {
  const text = [...link.labels].join(", ") + (link.count > 3 ? ", …" : "");
  return link.moved >= 0 ? text + (link.moved ? "  " + bytes(link.moved) : "") : text;
}

function drawLabel(c, link, [x, y], taken, near, tall) {
  const text = labelOf(link);
  const wide = c.measureText(text).width + 8;
  if (!near && taken.some((t) => Math.abs(t[0] - x) < (t[2] + wide) / 2 + 2
      && Math.abs(t[1] - y) < tall + 3)) return;
  taken.push([x, y, wide]);
  c.fillStyle = "#f6f8fae8";
  c.fillRect(x - wide / 2, y - tall * 0.7, wide, tall * 1.4);
  c.fillStyle = link.moved >= 0 ? BOXING : SOFT;
  c.fillText(text, x, y + 0.5);
}

function rounded(c, x, y, w, h, radius) {
  c.beginPath();
  c.roundRect(x, y, w, h, radius);
}

function drawNode(c, node, scale) {
  const {ax: x, ay: y, w, h} = node;
  const color = node.placement >= 0 ? node.placement % COLORS.length : -1;
  if (node.open) {
    rounded(c, x, y, w, h, 9);
    c.fillStyle = node.parent === 0 ? "#ffffffb0" : "#eef2f766";
    c.fill();
    c.strokeStyle = node === chosen ? "#1f6feb" : "#c3ceda";
    c.lineWidth = (node === chosen ? 2 : 1) / Math.min(1, scale);
    c.stroke();
    if (scale * 12 > 5) {
      c.font = "600 13px " + FONT;
      c.fillStyle = SOFT;
      c.textAlign = "left";
      c.fillText(fitted(c, "▾ " + title(node), w - 16), x + 9, y + 13);
    }
    return;
  }
  const faded = chosen && node !== chosen && !related.has(node);
  c.globalAlpha = faded ? 0.35 : 1;
  if (node.op < 0 && scale > 0.2) {
    rounded(c, x + 4, y + 4, w, h, 7);
    c.fillStyle = "#dfe6ee";
    c.fill();
  }
  rounded(c, x, y, w, h, 7);
  c.fillStyle = color < 0 ? "#eef1f5" : TINTS[color];
  c.fill();
  c.lineWidth = (node === chosen ? 2.5 : found.has(node) ? 2.5 : 1) / Math.min(1, scale);
  c.strokeStyle = found.has(node) ? "#e0a500" : node === chosen ? "#1f6feb"
    : color < 0 ? "#9aa7b5" : COLORS[color];
  c.stroke();
  if (scale * 12 > 4) {
    c.textAlign = "center";
    c.fillStyle = INK;
    c.font = "600 13px " + FONT;
    const name = (node.op < 0 ? "▸ " : "") + node.label;
    c.fillText(fitted(c, name, w - 14), x + w / 2, y + (scale > 0.45 ? 15 : h / 2));
    if (scale > 0.45) {
      c.font = "11px " + FONT;
      c.fillStyle = SOFT;
      c.fillText(fitted(c, below(node), w - 14), x + w / 2, y + 31);
    }
  }
  c.globalAlpha = 1;
}

let related = new Set(), found = new Set();
function paintGraph(c, v, width, height) {
  c.setTransform(c.getTransform().translate(v.x, v.y).scale(v.sx, v.sy));
  const box = [-v.x / v.sx, -v.y / v.sy, (width - v.x) / v.sx, (height - v.y) / v.sy];
  const inside = (x1, y1, x2, y2) => x2 > box[0] && x1 < box[2] && y2 > box[1] && y1 < box[3];
  c.textBaseline = "middle";
  let count = 0;
  const here = visible.filter((n) => n !== root && inside(n.ax, n.ay, n.ax + n.w, n.ay + n.h));
  for (const node of here) if (node.open) drawNode(c, node, v.sx);
  const labels = [];
  for (const link of drawn) {
    const [x1, y1, x2, y2] = ends(link);
    if (!inside(Math.min(x1, x2) - 40, Math.min(y1, y2), Math.max(x1, x2) + 40,
                Math.max(y1, y2))) continue;
    if (link.far && v.sx < FAR && !chosen) continue; // a haze, and most of the work
    const near = chosen && (link.a === chosen || link.b === chosen
      || within(link.a, chosen) || within(link.b, chosen));
    const middle = drawLink(c, link, v.sx, near);
    const close = !link.far && Math.abs(y2 - y1) < 260;
    if (v.sx > 0.4 && (near || (!chosen && (close || (!link.far && link.moved > 0))))) labels.push([link, middle, near]);
  }
  for (const node of here) if (!node.open) { drawNode(c, node, v.sx); count += 1; }
  const letters = Math.max(11, 8.5 / v.sx);
  c.font = letters + "px " + FONT;
  c.textAlign = "center";
  const taken = [];
  labels.sort((a, b) => (b[2] - a[2]) || (b[0].moved - a[0].moved));
  for (const label of labels) drawLabel(c, label[0], label[1], taken, label[2], letters);
  graph.canvas.dataset.nodes = count;
  graph.canvas.dataset.links = drawn.length;
}

function within(node, scope) {
  for (let up = node; up.parent >= 0; up = nodes[up.parent]) if (up === scope) return true;
  return false;
}

function hit({x, y}) {
  for (let i = visible.length - 1; i > 0; i--) {
    const n = visible[i];
    const tall = n.open ? HEAD + 4 : n.h;
    if (x >= n.ax && x <= n.ax + n.w && y >= n.ay && y <= n.ay + tall) return n;
  }
  return null;
}

function describe(node) {
  if (node.op < 0) return `${fullName(node)}\n${node.count} ops, click to `
    + (node.open ? "close" : "open");
  const op = ops[node.op];
  return [op.name, op.type, op.outputs, `${data.placements[op.placement]}  ${op.sbp}`, op.line]
    .filter(Boolean).join("\n");
}

function fullName(node) {
  const parts = [];
  for (let up = node; up.parent >= 0; up = nodes[up.parent]) parts.unshift(up.label);
  return parts.join(" / ");
}

function toggle(node) {
  const {x, y} = {x: node.ax, y: node.ay};
  node.open = !node.open;
  place();
  graph.view.x += (x - node.ax) * graph.view.sx;
  graph.view.y += (y - node.ay) * graph.view.sy;
}

function choose(node) {
  chosen = node;
  related = new Set();
  if (node) for (const link of drawn) {
    if (link.a === node || within(link.a, node)) related.add(link.b).add(link.a);
    if (link.b === node || within(link.b, node)) related.add(link.a).add(link.b);
  }
  detail(node);
  graph.paint();
}

function reveal(node) {
  for (let up = node; up.parent >= 0; up = nodes[up.parent]) nodes[up.parent].open = true;
  place();
  const v = graph.view;
  v.sx = v.sy = Math.max(v.sx, 0.9);
  v.x = graph.width / 2 - (node.ax + node.w / 2) * v.sx;
  v.y = graph.height / 2 - (node.ay + node.h / 2) * v.sy;
  choose(node);
}

function fit() {
  const v = graph.view, space = 24;
  v.sx = v.sy = Math.min((graph.width - 2 * space) / root.w,
    (graph.height - 2 * space) / root.h, 1.25);
  v.x = (graph.width - root.w * v.sx) / 2;
  v.y = Math.max((graph.height - root.h * v.sy) / 2, space);
}

// Where all of it would be too small to read, the page begins with the top at a legible size:
// forward and backward next to each other, if they fit.
function start() {
  fit();
  const v = graph.view;
  if (v.sx >= LEGIBLE) return;
  const pair = root.children[Math.min(1, root.children.length - 1)];
  const wanted = Math.min((graph.width - 48) / (pair.ax + pair.w), graph.height / root.h);
  v.sx = v.sy = Math.min(Math.max(LEGIBLE, wanted), 1);
  v.x = root.w * v.sx < graph.width ? (graph.width - root.w * v.sx) / 2 : 24;
  v.y = 44;
}

const graphBox = element("div", {class: "drawing"});
const side = element("aside");
const graph = new Drawing(graphBox, paintGraph, {
  hover: (at) => { const node = hit(at); return node ? describe(node) : ""; },
  click: (at) => {
    const node = hit(at);
    if (node && node.op < 0) toggle(node);
    choose(node);
  },
});
graph.least = 0.004;
graph.most = 4;

function opLink(op) {
  return element("a", {text: op.name, onclick: () => reveal(op.node)});
}

function detail(node) {
  side.replaceChildren();
  if (!node) {
    side.append(
      element("h2", {text: data.title}), element("p", {class: "hint", text: data.line}),
      element("h3", {text: "How to read it"}),
      element("p", {text: "Boxes are ops; their colour says on which devices they run. Labels "
        + "on edges are the SBP of the value. Orange edges change the layout: what the maker "
        + "gives → what the reader wants, and the bytes that cross devices; dashed ones cost "
        + "nothing." }),
      element("p", {text: "Click a scope to open or close it, an op to see its neighbours; drag "
        + "to move, turn the wheel to zoom, type to search."}));
    if (data.selection.length) side.append(element("h3", {text: "Choice of SBP"}));
    for (const row of data.selection) side.append(element("p", {text: row.join(": ")}));
    return;
  }
  if (node.op < 0) {
    side.append(element("h2", {text: fullName(node)}),
      element("p", {text: `${node.count} ops`}), element("h3", {text: "in it"}));
    for (const child of node.children.slice(0, 100))
      side.append(element("p", {}, [element("a",
        {text: child.label, onclick: () => reveal(child)})]));
    return;
  }
  const op = ops[node.op];
  side.append(element("h2", {text: op.name}));
  for (const [label, text] of [["type", op.type], ["outputs", op.outputs],
    ["placement", data.placements[op.placement]], ["SBP", op.sbp], ["line", op.line]])
    if (text) side.append(element("h3", {text: label}), element("p", {text}));
  for (const [label, list, pick] of [["reads", op.ins, "from"], ["is read by", op.outs, "to"]]) {
    if (!list.length) continue;
    side.append(element("h3", {text: label}));
    for (const link of list) {
      const way = link.moved < 0 ? link.have
        : `${link.have} → ${link.want}, ${bytes(link.moved)}`;
      side.append(element("p", {}, [opLink(ops[link[pick]]), element("span",
        {text: "  " + way, class: link.moved < 0 ? "hint" : "boxed"})]));
    }
  }
  const mine = data.tasks.map((t, i) => [t, i]).filter(([t]) => t[1] === op.id);
  if (mine.length) side.append(element("h3", {text: "tasks"}));
  for (const [task, i] of mine.slice(0, 40))
    side.append(element("p", {text: `${i}  ${task[2]} on ${task[3]}`}));
}
