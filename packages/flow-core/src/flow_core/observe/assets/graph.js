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
const GAP_X = 18, GAP_Y = 44, PAD = 12, HEAD = 26, MOST_OPEN = 150, LEGIBLE = 0.6, FEW = 16,
  WIDE = 1500, FAR = 0.1, MARKED = 5, ABOVE = 48,
  BELOW = 48, SPACE = 24;

// Scopes are opened level by level, as long as the whole graph is legible.  The forward ops, which
// the user wrote, are then shown as a few boxes.
function openFirst() {
  root.open = true;
  let level = root.children;
  while (level.length) {
    const inside = level.flatMap((node) => node.children);
    if (inside.length > MOST_OPEN) break;
    for (const node of level) node.open = node.op < 0;
    place();
    if (scaleOfAll() < LEGIBLE) {
      const order = {update: 2, backward: 1, forward: 0};
      const rank = (n) => order[phase(n).label];
      const folds = (a, b) => rank(b) - rank(a) || b.w * b.h - a.w * a.h;
      for (const node of [...level].sort(folds)) {
        if (scaleOfAll() >= LEGIBLE || (spine(node) && readable(phase(node)))) break;
        node.open = false;
        place();
      }
      break;
    }
    level = inside;
  }
  place();
}

function space() {
  return [graph.width || innerWidth - 330, graph.height || innerHeight - 110];
}

// Whether a node is the forward ops, or the only scope of its part of them.
function spine(node) {
  return phase(node).label === "forward" && (node.parent === 0
    || nodes[node.parent].children.filter((n) => n.op < 0).length === 1);
}

// Whether a node shows few boxes, in a legible drawing that is not wider than the window.
function readable(node) {
  const boxes = (n) => n.open ? n.children.reduce((sum, child) => sum + boxes(child), 0) : 1;
  return boxes(node) <= FEW && node.w * LEGIBLE + 2 * SPACE <= space()[0];
}

function scaleOfAll() {
  const [wide, high] = space();
  return Math.min((wide - 2 * SPACE) / root.w, (high - ABOVE - BELOW) / root.h, 1.25);
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

// The most expensive transfers, each with the edges that need it.
const marks = data.ledger.filter((row) => row[4] > 0).slice(0, MARKED).map((row, i) => {
  const op = ops.find((o) => o.name === row[0].replace(/:\d+$/, ""));
  return {number: i + 1, row, op, links: op ? op.outs.filter((l) => l.moved > 0) : []};
});
const markOf = new Map(marks.flatMap((m) => m.links.map((l) => [l, m])).reverse());

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
  for (const node of nodes) node.marks = new Set();
  const top = (op) => {
    if (!seen.has(op)) seen.set(op, shown(ops[op].node));
    return seen.get(op);
  };
  for (const link of links) {
    const a = top(link.from), b = top(link.to);
    const mark = markOf.get(link);
    if (a === b) {
      if (mark) a.marks.add(mark);
      continue;
    }
    const key = a.id * nodes.length + b.id;
    let joined = found.get(key);
    if (!joined) {
      joined = {a, b, count: 0, moved: -1, labels: new Set(), marks: new Set()};
      joined.far = phase(a) !== phase(b);
      joined.faint = joined.far && phase(b).label === "update";
      found.set(key, joined);
    }
    joined.count += 1;
    if (mark) joined.marks.add(mark);
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
  c.strokeStyle = link.moved >= 0 ? theme.boxing : theme.edge;
  c.globalAlpha = near || (link.marks.size && !chosen) ? 1 : link.faint ? 0.06 : chosen ? 0.13 : link.far ? 0.18
    : link.moved >= 0 ? 0.85 : 0.6;
  c.lineWidth = (link.marks.size ? 3 : near ? 2 : link.moved > 0 ? 1.7 : 1.1) / Math.min(scale, 1);
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
  c.fillStyle = theme.back;
  c.fillRect(x - wide / 2, y - tall * 0.7, wide, tall * 1.4);
  c.fillStyle = link.moved >= 0 ? theme.boxing : theme.soft;
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
    c.fillStyle = node.parent === 0 ? theme.paper : theme.scope;
    c.fill();
    c.strokeStyle = node === chosen ? theme.accent : theme.line;
    c.lineWidth = (node === chosen ? 2 : 1) / Math.min(1, scale);
    c.stroke();
    if (scale * 12 > 5) {
      c.font = "600 13px " + FONT;
      c.fillStyle = theme.soft;
      c.textAlign = "left";
      c.fillText(fitted(c, "▾ " + title(node), w - 16), x + 9, y + 13);
    }
    return;
  }
  const faded = chosen && node !== chosen && !related.has(node);
  c.globalAlpha = faded ? 0.35 : 1;
  if (node.op < 0 && scale > 0.2) {
    rounded(c, x + 4, y + 4, w, h, 7);
    c.fillStyle = theme.line;
    c.fill();
  }
  rounded(c, x, y, w, h, 7);
  c.fillStyle = theme.paper;
  c.fill();
  c.fillStyle = (color < 0 ? theme.several : COLORS[color]) + TINT;
  c.fill();
  c.lineWidth = (node === chosen ? 2.5 : found.has(node) ? 2.5 : 1) / Math.min(1, scale);
  c.strokeStyle = found.has(node) ? theme.found : node === chosen ? theme.accent
    : color < 0 ? theme.several : COLORS[color];
  c.stroke();
  if (scale * 12 > 4) {
    c.textAlign = "center";
    c.fillStyle = theme.ink;
    c.font = "600 13px " + FONT;
    const name = (node.op < 0 ? "▸ " : "") + node.label;
    c.fillText(fitted(c, name, w - 14), x + w / 2, y + (scale > 0.45 ? 15 : h / 2));
    if (scale > 0.45) {
      c.font = "11px " + FONT;
      c.fillStyle = theme.soft;
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
  const badges = [];
  for (const link of drawn) if (link.marks.size) {
    const [x1, y1, x2, y2] = ends(link);
    badges.push([link.marks, (x1 + x2) / 2, (y1 + y2) / 2]);
  }
  for (const node of here) if (!node.open) { drawNode(c, node, v.sx); count += 1; }
  const letters = Math.max(11, 8.5 / v.sx);
  c.font = letters + "px " + FONT;
  c.textAlign = "center";
  const taken = [];
  labels.sort((a, b) => (b[2] - a[2]) || (b[0].moved - a[0].moved));
  for (const label of labels) drawLabel(c, label[0], label[1], taken, label[2], letters);
  for (const node of here) if (node.marks.size && !node.open)
    badges.push([node.marks, node.ax + node.w, node.ay]);
  for (const badge of badges) drawBadge(c, v.sx, ...badge);
  graph.canvas.dataset.marks = new Set(badges.flatMap(([of]) => [...of])).size;
  graph.canvas.dataset.nodes = count;
  graph.canvas.dataset.links = drawn.length;
  graph.canvas.dataset.scale = v.sx;
  graph.canvas.dataset.open = visible.filter((node) => node.open && node.parent >= 0)
    .map((node) => phase(node).label).sort().join(" ");
}

// The ranks of expensive transfers, in a circle or a longer shape.
function drawBadge(c, scale, of, x, y) {
  const text = [...of].map((m) => m.number).sort((a, b) => a - b).join(" ");
  const tall = 16 / Math.min(scale, 1);
  c.font = `600 ${11 / Math.min(scale, 1)}px ${FONT}`;
  const wide = Math.max(tall, c.measureText(text).width + tall / 2);
  rounded(c, x - wide / 2, y - tall / 2, wide, tall, tall / 2);
  c.fillStyle = theme.boxing;
  c.fill();
  c.fillStyle = theme.paper;
  c.textAlign = "center";
  c.fillText(text, x, y + 0.5);
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

// Open the graph at its beginning, in legible size; it is all visible if there is room.
function begin() {
  const v = graph.view;
  openFirst();
  fit();
  if (v.sx >= LEGIBLE) return;
  v.sx = v.sy = LEGIBLE;
  v.x = Math.max((graph.width - root.w * v.sx) / 2, SPACE);
  v.y = ABOVE;
}

function fit() {
  const v = graph.view;
  v.sx = v.sy = scaleOfAll();
  v.x = (graph.width - root.w * v.sx) / 2;
  v.y = Math.max((graph.height - root.h * v.sy) / 2, ABOVE);
}

const DIRECTIONS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

// Arrow keys choose the next box in a direction; with shift, they move the drawing.
function graphKey(e) {
  if (e.key === "0") { fit(); return true; }
  if (e.key === "Enter" && chosen) {
    if (chosen.op < 0) { toggle(chosen); choose(chosen); }
    return true;
  }
  const direction = DIRECTIONS[e.key];
  if (!direction || e.shiftKey) return false;
  const [dx, dy] = direction;
  const middle = (n) => [n.ax + n.w / 2, n.ay + (n.open ? HEAD / 2 : n.h / 2)];
  const boxes = visible.filter((n) => n !== root && n !== chosen);
  if (!chosen) { choose(boxes[0] || null); return true; }
  const [x, y] = middle(chosen);
  let best = null, least = Infinity;
  for (const node of boxes) {
    const [nx, ny] = middle(node);
    const along = (nx - x) * dx + (ny - y) * dy;
    const across = Math.abs((nx - x) * dy) + Math.abs((ny - y) * dx);
    if (along > 1 && along + 2 * across < least) { least = along + 2 * across; best = node; }
  }
  if (best) { choose(best); show(best); }
  return true;
}

// Moves the drawing as little as needed to show a box.
function show(node) {
  const v = graph.view;
  const [x, y] = [v.x + node.ax * v.sx, v.y + node.ay * v.sy];
  const [w, h] = [node.w * v.sx, Math.min(node.h * v.sy, graph.height / 2)];
  v.x += Math.max(0, SPACE - x) + Math.min(0, graph.width - SPACE - x - w);
  v.y += Math.max(0, SPACE - y) + Math.min(0, graph.height - BELOW - y - h);
}

const graphBox = element("div", {class: "drawing"});
const side = element("aside");
const graph = new Drawing(graphBox, paintGraph, {
  label: "graph of the job: arrow keys choose a box, Enter opens a scope, 0 shows all",
  key: graphKey,
  hover: (at) => { const node = hit(at); return node ? describe(node) : ""; },
  click: (at) => {
    const node = hit(at);
    if (node && node.op < 0) toggle(node);
    choose(node);
  },
});
graph.least = 0.004;
graph.most = 4;

function link(text, action) {
  return active(element("a", {text, role: "link"}), action);
}

// Seconds per op: the sum over its tasks on all devices.
const opTimes = new Float64Array(ops.length);
data.tasks.forEach((task, i) => { if (task[1] >= 0) opTimes[task[1]] += data.times[i]; });
function timeOf(op) {
  const kind = data.steps ? `median of ${data.steps} steps` : "predicted";
  return opTimes[op.id] ? `${micros(opTimes[op.id])}, ${kind}` : "";
}

function opLink(op) {
  return link(op.name, () => reveal(op.node));
}

function detail(node) {
  side.replaceChildren();
  if (!node) {
    side.append(
      element("h2", {text: data.title}), element("p", {class: "hint", text: data.line}));
    if (marks.length) side.append(element("h3", {text: "Most expensive transfers"}));
    for (const mark of marks) {
      const [value, steps, , , count, time, , , where] = mark.row;
      side.append(element("p", {}, [element("b", {class: "badge", text: mark.number}),
        mark.op ? link(value, () => reveal(mark.op.node)) : value,
        element("span", {class: "hint", text: ` ${steps}, ${bytes(count)}, ${micros(time)}, `
          + short(where)})]));
    }
    side.append(element("h3", {text: "How to read it"}),
      element("p", {text: "A box is an op; its color says on which devices it runs. The label "
        + "of an edge is the SBP of the value. Red edges change the SBP: the SBP of the producer "
        + "→ the SBP that the reader needs, and the bytes that cross devices; dashed edges send "
        + "nothing. Numbers mark the most expensive transfers." }),
      element("p", {text: "Click a scope to open or close it, an op to see its neighbors; drag "
        + "to move, turn the wheel to zoom, type / to search. Keys: arrows, Enter, +, -, 0; left "
        + "and right go from tab to tab."}));
    if (data.selection.length) side.append(element("h3", {text: "Choice of SBP"}));
    for (const row of data.selection) side.append(element("p", {text: row.join(": ")}));
    return;
  }
  if (node.op < 0) {
    side.append(element("h2", {text: fullName(node)}),
      element("p", {text: `${node.count} ops`}), element("h3", {text: "in it"}));
    for (const child of node.children.slice(0, 100))
      side.append(element("p", {}, [link(child.label, () => reveal(child))]));
    return;
  }
  const op = ops[node.op];
  side.append(element("h2", {text: op.name}));
  for (const [label, text] of [["type", op.type], ["time", timeOf(op)], ["outputs", op.outputs],
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
