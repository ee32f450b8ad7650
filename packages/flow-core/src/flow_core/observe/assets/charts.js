// Memory over a step, and when each task of a measured step ran.

const KINDS = {feed: "#6fa4dc", constant: "#a78fd8", temp: "#6fbf86", workspace: "#b8ab5a"};
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
  c.fillStyle = theme.paper;
  c.fillRect(xOf(0), MARGIN.top, count * v.sx, tall);
  c.textBaseline = "middle";
  c.font = "11px " + FONT;
  for (const [offset, size, first, last, kind, name] of blocks) {
    const x = xOf(first), w = (last + 1 - first) * v.sx;
    if (x > width || x + w < 0) continue;
    const y = yOf(offset + size), h = Math.max(yOf(offset) - y, 0.5);
    c.fillStyle = KINDS[kind] || theme.several;
    c.fillRect(x, y, Math.max(w, 0.6), h);
    if (h > 3 && w > 3) {
      c.strokeStyle = theme.paper;
      c.lineWidth = 1;
      c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (h > 13 && w > 40) {
      c.fillStyle = "#10202e";
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
  c.strokeStyle = theme.live;
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
  c.fillStyle = theme.soft;
  c.strokeStyle = theme.line;
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

const memory = new Drawing(memoryBox, paintMemory, {flat: true, label: "memory over the tasks of a step", hover: ({x, py}) => {
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


// -------------------------------------------------------------------------------- timeline

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
    c.fillStyle = i % 2 ? theme.paper : theme.back;
    c.fillRect(0, MARGIN.top + i * tall, width, tall);
    c.fillStyle = theme.soft;
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
    c.fillStyle = data.tasks[task][3].endsWith("transfer") ? theme.boxing : COLORS[color];
    c.fillRect(x, y, w, tall - 6);
    if (w > 34) {
      c.fillStyle = "#ffffff";
      c.fillText(fitted(c, name, w - 8), Math.max(x, 120) + 4, y + tall / 2 - 3);
    }
  }
  c.restore();
  c.fillStyle = theme.soft;
  c.textAlign = "center";
  const step = niceStep(100 / v.sx);
  for (let at = 0; at <= whole; at += step) {
    const x = v.x + at * v.sx;
    if (x < 120 || x > width - 30) continue;
    c.fillText(micros(at), x, MARGIN.top - 10);
    c.fillRect(x, MARGIN.top - 4, 1, 4);
  }
}

const time = new Drawing(timeBox, paintTime, {flat: true, label: "time of each task", hover: ({x, py}) => {
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
