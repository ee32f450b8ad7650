"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // ------------------------------------------------------------------------------ small things

  const COLORS = ["#3b82c4", "#d9822b", "#4c9a5b", "#b8507a", "#7a63c2", "#2a9d9a", "#a3803c",
    "#c25b4e", "#64789b", "#8a9a2f"];
  const TINTS = ["#e8f1fa", "#fcf0e2", "#e7f4ea", "#f9e8f0", "#efebf9", "#e2f4f3", "#f5efe2",
    "#faeae7", "#ebeff5", "#f2f4df"];
  const BOXING = "#c2410c", INK = "#1d2733", SOFT = "#5b6b7c", LINE = "#d8dfe7";
  const FONT = 'system-ui, "Segoe UI", Roboto, sans-serif';

  function element(tag, options = {}, children = []) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name === "text") made.textContent = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function bytes(count) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (count >= size) return (count / size).toFixed(count / size < 10 ? 2 : 1) + " " + unit;
    return count + " B";
  }

  function micros(time) {
    return time >= 1000 ? (time / 1000).toFixed(2) + " ms" : time.toFixed(1) + " µs";
  }

  function short(line) { return line.split("/").pop(); }

  const tip = element("div", {class: "tip"});
  function showTip(text, event) {
    tip.style.display = text ? "block" : "none";
    if (!text) return;
    tip.textContent = text;
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    tip.style.left = (right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  }

  // A canvas that is moved by dragging and scaled by the wheel, in x alone where it is asked to.
  class Drawing {
    constructor(parent, draw, {flat = false, hover, click} = {}) {
      this.view = {x: 0, y: 0, sx: 1, sy: 1};
      this.canvas = element("canvas", {tabindex: "0"});
      this.context = this.canvas.getContext("2d");
      this.draw = draw;
      this.flat = flat;
      parent.prepend(this.canvas);
      this.parent = parent;
      new ResizeObserver(() => this.resize()).observe(parent);
      this.canvas.addEventListener("wheel", (e) => this.wheel(e), {passive: false});
      this.canvas.addEventListener("pointerdown", (e) => this.down(e));
      this.canvas.addEventListener("pointermove", (e) => this.move(e, hover));
      this.canvas.addEventListener("pointerleave", (e) => showTip("", e));
      this.canvas.addEventListener("pointerup", (e) => {
        const still = this.drag && !this.drag.moved;
        this.drag = null;
        if (still && click) click(this.at(e), e);
      });
    }
    get width() { return this.parent.clientWidth; }
    get height() { return this.parent.clientHeight; }
    resize() {
      const ratio = devicePixelRatio || 1;
      const [w, h] = [this.width, this.height];
      if (!w || !h || (this.canvas.width === Math.round(w * ratio)
          && this.canvas.height === Math.round(h * ratio))) return;
      this.canvas.width = Math.round(w * ratio);
      this.canvas.height = Math.round(h * ratio);
      this.canvas.style.width = w + "px";
      this.canvas.style.height = h + "px";
      if (this.resized) this.resized();
      this.now();
    }
    at(e) {
      const box = this.canvas.getBoundingClientRect();
      const [px, py] = [e.clientX - box.left, e.clientY - box.top];
      const v = this.view;
      return {x: (px - v.x) / v.sx, y: (py - v.y) / v.sy, px, py};
    }
    wheel(e) {
      e.preventDefault();
      const {px, py} = this.at(e);
      if (this.flat && e.shiftKey) this.view.x -= e.deltaY || e.deltaX;
      else this.zoom(Math.exp(-e.deltaY * 0.0016), px, py);
      this.paint();
    }
    zoom(factor, px = this.width / 2, py = this.height / 2) {
      const v = this.view;
      const limited = Math.min(Math.max(v.sx * factor, this.least || 0.01), this.most || 6);
      factor = limited / v.sx;
      v.sx = limited;
      v.x = px - (px - v.x) * factor;
      if (this.flat) return;
      v.sy *= factor;
      v.y = py - (py - v.y) * factor;
    }
    down(e) {
      this.canvas.setPointerCapture(e.pointerId);
      this.drag = {x: e.clientX, y: e.clientY, moved: false};
    }
    move(e, hover) {
      const d = this.drag;
      if (!d) { if (hover) showTip(hover(this.at(e)), e); return; }
      if (!d.moved && Math.hypot(e.clientX - d.x, e.clientY - d.y) < 4) return;
      d.moved = true;
      showTip("", e);
      this.view.x += e.clientX - d.x;
      if (!this.flat) this.view.y += e.clientY - d.y;
      [d.x, d.y] = [e.clientX, e.clientY];
      this.paint();
    }
    paint() {
      if (this.due) return;
      this.due = true;
      requestAnimationFrame(() => { this.due = false; this.now(); });
    }
    now() {
      if (!this.width || !this.height) return;
      const c = this.context, ratio = devicePixelRatio || 1;
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      this.draw(c, this.view, this.width, this.height);
    }
  }

  function fitted(c, text, width) {
    if (c.measureText(text).width <= width) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (c.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
      else high = middle - 1;
    }
    return low ? text.slice(0, low) + "…" : "";
  }

  // -------------------------------------------------------------------------------------- graph

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
  const GAP_X = 18, GAP_Y = 44, PAD = 12, HEAD = 26, MOST_OPEN = 150, LEGIBLE = 0.75;

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
    const rows = node.parent === 0 && node.label === "backward"
      ? [...node.rows].reverse() : node.rows;
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
    return [(x1 + x2) / 2, (y1 + y2) / 2];
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

  // ------------------------------------------------------------------------------------- tables

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
    [["value"], ["steps"], ["from"], ["to"], ["bytes", number, "number"],
     ["predicted", micros, "number"], ["why"], ["instead"], ["line"]],
    data.ledger,
    (i) => {
      const name = data.ledger[i][0].replace(/:\d+$/, "");
      const op = ops.find((o) => o.name === name);
      if (op) { select("graph"); reveal(op.node); }
    });

  // ------------------------------------------------------------------------------------- memory

  const KINDS = {feed: "#7fb2e5", constant: "#b9a3e3", temp: "#8fcf9f", workspace: "#f0bd84"};
  const arenaChoice = element("select", {title: "device"}, data.arenas.map(([device, size], i) =>
    element("option", {value: i, text: `${device}   ${bytes(size)}`})));
  let arena = 0;
  const memoryBox = element("div", {class: "drawing"});
  const MARGIN = {left: 78, right: 20, top: 56, bottom: 44};

  function liveCurve(blocks, count) {
    const change = new Float64Array(count + 1);
    for (const [, size, first, last] of blocks) { change[first] += size; change[last + 1] -= size; }
    for (let i = 1; i <= count; i++) change[i] += change[i - 1];
    return change.slice(0, count);
  }

  function paintMemory(c, v, width, height) {
    if (!data.arenas.length) return;
    const [, total, , blocks] = data.arenas[arena];
    const count = Math.max(data.tasks.length, 1);
    const tall = height - MARGIN.top - MARGIN.bottom;
    const yOf = (offset) => MARGIN.top + tall * (1 - offset / Math.max(total, 1));
    const xOf = (task) => v.x + task * v.sx;
    c.save();
    c.beginPath();
    c.rect(MARGIN.left, 0, width - MARGIN.left - MARGIN.right, height);
    c.clip();
    c.fillStyle = "#ffffff";
    c.fillRect(xOf(0), MARGIN.top, count * v.sx, tall);
    c.textBaseline = "middle";
    c.font = "11px " + FONT;
    for (const [offset, size, first, last, kind, name] of blocks) {
      const x = xOf(first), w = (last + 1 - first) * v.sx;
      if (x > width || x + w < 0) continue;
      const y = yOf(offset + size), h = Math.max(yOf(offset) - y, 0.5);
      c.fillStyle = KINDS[kind] || "#c5ced8";
      c.fillRect(x, y, Math.max(w, 0.6), h);
      if (h > 3 && w > 3) {
        c.strokeStyle = "#ffffffb0";
        c.lineWidth = 1;
        c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      }
      if (h > 13 && w > 40) {
        c.fillStyle = INK;
        c.textAlign = "left";
        c.fillText(fitted(c, name, w - 10), Math.max(x, MARGIN.left) + 5, y + h / 2);
      }
    }
    const live = liveCurve(blocks, count);
    c.beginPath();
    live.forEach((size, i) => {
      if (i === 0) c.moveTo(xOf(0), yOf(size)); else c.lineTo(xOf(i), yOf(size));
      c.lineTo(xOf(i + 1), yOf(size));
    });
    c.strokeStyle = "#b42318";
    c.lineWidth = 1.4;
    c.stroke();
    c.restore();
    axis(c, width, height, total, yOf);
    c.textAlign = "center";
    const step = niceStep(90 / v.sx);
    for (let task = 0; task <= count; task += step) {
      const x = xOf(task);
      if (x >= MARGIN.left && x <= width - MARGIN.right)
        c.fillText(String(task), x, height - MARGIN.bottom + 14);
    }
    c.fillText("task of the step", width / 2, height - 10);
  }

  function axis(c, width, height, total, yOf) {
    c.fillStyle = SOFT;
    c.strokeStyle = LINE;
    c.font = "11px " + FONT;
    c.textAlign = "right";
    for (let i = 0; i <= 4; i++) {
      const y = yOf(total * i / 4);
      c.fillText(bytes(Math.round(total * i / 4)), MARGIN.left - 8, y);
      c.beginPath();
      c.moveTo(MARGIN.left - 4, y);
      c.lineTo(width - MARGIN.right, y);
      c.stroke();
    }
  }

  function niceStep(least) {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((n) => n >= least));
  }

  const memory = new Drawing(memoryBox, paintMemory, {flat: true, hover: ({x, py}) => {
    const [, total, , blocks] = data.arenas[arena] || [0, 0, 0, []];
    const tall = memory.height - MARGIN.top - MARGIN.bottom;
    const offset = (1 - (py - MARGIN.top) / tall) * total, task = Math.floor(x);
    const block = blocks.find((b) => b[0] <= offset && offset < b[0] + b[1]
      && b[2] <= task && task <= b[3]);
    if (!block) return "";
    const [start, size, first, last, kind, name, line] = block;
    return `${name}\n${kind}, ${bytes(size)} at ${start}\ntasks ${first} to ${last}\n${line}`;
  }});
  memory.most = 400;
  memory.resized = () => {
    const wide = memory.width - MARGIN.left - MARGIN.right;
    memory.least = wide / Math.max(data.tasks.length, 1);
    if (memory.set && memory.view.sx > memory.least) return;
    memory.set = true;
    memory.view.sx = memory.least;
    memory.view.x = MARGIN.left;
  };
  arenaChoice.addEventListener("change", () => { arena = +arenaChoice.value; memory.paint(); });

  // ----------------------------------------------------------------------------------- timeline

  const lanes = [...new Set(data.spans.map(([task]) => data.tasks[task][3]))].sort();
  const lane = ([task]) => lanes.indexOf(data.tasks[task][3]);
  const kernels = [...new Set(data.tasks.map((t) => t[2]))];
  const ends_ = data.spans.map(([, start, length]) => start + length);
  const whole = Math.max(...ends_, 1);
  const timeBox = element("div", {class: "drawing"});

  const laneHeight = () => Math.min(70, Math.max(16,
    (time.height - MARGIN.top - MARGIN.bottom) / Math.max(lanes.length, 1)));

  function paintTime(c, v, width, height) {
    const tall = laneHeight();
    c.textBaseline = "middle";
    c.font = "11px " + FONT;
    lanes.forEach((name, i) => {
      c.fillStyle = i % 2 ? "#ffffff" : "#eef2f6";
      c.fillRect(0, MARGIN.top + i * tall, width, tall);
      c.fillStyle = SOFT;
      c.textAlign = "left";
      c.fillText(name, 10, MARGIN.top + (i + 0.5) * tall);
    });
    c.save();
    c.beginPath();
    c.rect(120, 0, width - 120, height);
    c.clip();
    for (const span of data.spans) {
      const [task, start, length] = span;
      const x = v.x + start * v.sx, w = Math.max(length * v.sx, 0.7);
      if (x > width || x + w < 120) continue;
      const y = MARGIN.top + lane(span) * tall + 3;
      const [name, , kernel] = data.tasks[task];
      const color = kernels.indexOf(kernel) % COLORS.length;
      c.fillStyle = kernel.includes("boxing") ? BOXING : COLORS[color];
      c.fillRect(x, y, w, tall - 6);
      if (w > 34) {
        c.fillStyle = "#ffffff";
        c.fillText(fitted(c, name, w - 8), Math.max(x, 120) + 4, y + tall / 2 - 3);
      }
    }
    c.restore();
    c.fillStyle = SOFT;
    c.textAlign = "center";
    const step = niceStep(100 / v.sx);
    for (let at = 0; at <= whole; at += step) {
      const x = v.x + at * v.sx;
      if (x < 120 || x > width - 30) continue;
      c.fillText(micros(at), x, MARGIN.top - 10);
      c.fillRect(x, MARGIN.top - 4, 1, 4);
    }
  }

  const time = new Drawing(timeBox, paintTime, {flat: true, hover: ({x, py}) => {
    const row = Math.floor((py - MARGIN.top) / laneHeight());
    const span = data.spans.find((s) => lane(s) === row && s[1] <= x && x <= s[1] + s[2]);
    if (!span) return "";
    const [name, , kernel, stream, line] = data.tasks[span[0]];
    return `${name}\n${kernel} in ${stream}\n${micros(span[2])} from ${micros(span[1])}\n${line}`;
  }});
  time.most = 1000;
  time.resized = () => {
    time.least = (time.width - 150) / whole;
    if (time.set && time.view.sx > time.least) return;
    time.set = true;
    time.view.sx = time.least;
    time.view.x = 124;
  };

  // --------------------------------------------------------------------------------------- page

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
    legend([...data.placements.slice(0, 10).map((text, i) => [COLORS[i % COLORS.length], text]),
      ["#9aa7b5", "several"], [BOXING, "boxing"]]));
  memoryBox.append(element("div", {class: "tools"}, [arenaChoice]),
    legend([...Object.entries(KINDS).map(([kind, color]) => [color, kind]),
      ["#b42318", "bytes in use"]]));
  timeBox.append(legend([[BOXING, "boxing"], [COLORS[0], "other colours: one per kernel"]]));

  const sections = {
    graph: ["Graph", [graphBox, side], graph],
    ops: ["Ops", [element("div", {class: "rows"}, [opTable.made])]],
    ledger: ["Ledger", [element("div", {class: "rows"}, data.ledger.length ? [ledger.made]
      : [element("div", {class: "empty", text: "Nothing crosses devices."})])]],
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
})();
