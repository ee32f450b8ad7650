// Elements, texts, and canvases that are dragged and zoomed.

const data = JSON.parse(document.getElementById("data").textContent);


// Colors of devices and kernels; none is near the color of boxing.
const COLORS = ["#2f6fb5", "#2e8b57", "#7a5cc2", "#0f8f96", "#7d8a1f", "#4456b8", "#5f7f95",
  "#a06ab4", "#3d8f7a", "#6b7280"];
const TINT = "2e"; // the opacity of a fill, as two hexadecimal digits

// The colors of canvases are those of the style sheet.
const theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "back", "paper", "accent", "boxing", "scope",
    "several", "edge", "found", "live"])
    theme[name] = style.getPropertyValue("--" + name).trim();
}
readTheme();

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

// Makes an element act on a click, Enter and the space bar.
function active(made, action) {
  made.setAttribute("tabindex", "0");
  made.addEventListener("click", action);
  made.addEventListener("keydown", (e) => {
    if ((e.key !== "Enter" && e.key !== " ") || e.target !== made) return;
    e.preventDefault();
    action(e);
  });
  return made;
}

// A canvas that is moved by dragging and scaled by the wheel, in x alone where it is asked to.
class Drawing {
  constructor(parent, draw, {flat = false, hover, click, key, label} = {}) {
    this.view = {x: 0, y: 0, sx: 1, sy: 1};
    this.canvas = element("canvas", {tabindex: "0", role: "img", "aria-label": label});
    this.context = this.canvas.getContext("2d");
    this.draw = draw;
    this.flat = flat;
    parent.prepend(this.canvas);
    this.parent = parent;
    new ResizeObserver(() => this.resize()).observe(parent);
    this.canvas.addEventListener("wheel", (e) => this.wheel(e), {passive: false});
    this.canvas.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey || !((key && key(e)) || this.key(e))) return;
      e.preventDefault();
      this.paint();
    });
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
  key(e) {
    const step = 60, v = this.view;
    if (e.key === "+" || e.key === "=") this.zoom(1.3);
    else if (e.key === "-") this.zoom(1 / 1.3);
    else if (e.key === "ArrowLeft") v.x += step;
    else if (e.key === "ArrowRight") v.x -= step;
    else if (e.key === "ArrowUp" && !this.flat) v.y += step;
    else if (e.key === "ArrowDown" && !this.flat) v.y -= step;
    else return false;
    return true;
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
