// The plots, as SVG drawn by hand. Each keeps its own data and redraws at most once a frame.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

class Plot {
  constructor(root, height) {
    this.root = root;
    this.height = height;
    this.svg = node("svg");
    root.append(this.svg);
    this.waiting = false;
    new ResizeObserver(() => this.soon()).observe(root);
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.width = Math.max(240, this.root.clientWidth - 32);
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.svg.replaceChildren();
      this.draw();
    });
  }

  add(name, attributes, text) {
    const made = node(name, attributes, text);
    this.svg.append(made);
    return made;
  }

  rule(y, text) {
    this.add("line", { x1: 24, x2: this.width, y1: y, y2: y, class: "grid" });
    this.add("text", { x: 18, y: y + 3.5, "text-anchor": "end" }, text);
  }
}

/** A bar per round: the block as a ghost, the accepted part coloured by origin. */
export class RoundPlot extends Plot {
  constructor(root, onRound) {
    super(root, 150);
    this.onRound = onRound;
    this.clear();
  }

  clear() {
    this.rounds = [];
    this.soon();
  }

  push(round) {
    this.rounds.push(round);
    this.soon();
  }

  light(number) {
    for (const group of this.svg.querySelectorAll(".round")) {
      group.classList.toggle("lit", Number(group.dataset.round) === number);
    }
  }

  draw() {
    const floor = 128;
    const tallest = Math.max(8, ...this.rounds.map((r) => r.block));
    const y = (value) => floor - (value / tallest) * 116;
    for (const mark of [0, tallest / 2, tallest]) this.rule(y(mark), String(Math.round(mark)));
    const room = this.width - 28;
    const shown = this.rounds.slice(-Math.floor(room / 5));
    const step = Math.min(22, room / Math.max(1, shown.length));
    const wide = Math.max(2, step * 0.72);
    const offset = this.rounds.length - shown.length;
    shown.forEach((round, place) => {
      const x = 28 + place * step;
      const group = this.add("g", { class: "round" });
      group.dataset.round = offset + place + 1;
      group.append(node("rect", { x, y: y(round.block), width: wide, height: floor - y(round.block), rx: 2, class: "bar-block" }));
      round.tokens.forEach((token, index) => {
        const top = y(index + 1);
        group.append(node("rect", { x, y: top, width: wide, height: y(index) - top, class: `bar-part ${token.kind}` }));
      });
      group.append(node("rect", { x, y: 10, width: step, height: floor - 10, fill: "transparent" }));
      group.append(node("title", {}, describe(round, offset + place + 1)));
      group.addEventListener("pointerenter", () => this.onRound(offset + place + 1));
      group.addEventListener("pointerleave", () => this.onRound(0));
    });
    this.add("line", { x1: 24, x2: this.width, y1: floor, y2: floor, class: "axis" });
    this.add("text", { x: 28, y: 144 }, this.rounds.length ? `round ${offset + 1}` : "no rounds yet");
    if (shown.length > 1) {
      const end = 28 + (shown.length - 0.5) * step;
      this.add("text", { x: Math.max(end, 110), y: 144, "text-anchor": "end" }, String(this.rounds.length));
    }
  }
}

function describe(round, number) {
  const entropy = round.entropy === null ? "" : `; entropy ${round.entropy.toFixed(2)} nats`;
  const branches = round.branches.map((b) => `${b.kind} at ${b.position}`).join(", ");
  return `Round ${number}: ${round.tokens.length} of block ${round.block}${entropy}`
    + (branches ? `; branches: ${branches}; ${round.hit >= 0 ? "one hit" : "none hit"}` : "");
}

/** Tokens over time: this run against plain decoding, both measured here. */
export class Timeline extends Plot {
  constructor(root) {
    super(root, 140);
    this.clear();
  }

  clear() {
    this.run = [];
    this.plain = [];
    this.soon();
  }

  push(series, seconds, tokens) {
    this[series].push([seconds, tokens]);
    this.soon();
  }

  draw() {
    const all = [...this.run, ...this.plain];
    const most = Math.max(16, ...all.map((p) => p[1]));
    const last = Math.max(0.1, ...all.map((p) => p[0]));
    const x = (s) => 28 + (s / last) * (this.width - 32);
    const y = (t) => 118 - (t / most) * 106;
    for (const mark of [0, most / 2, most]) this.rule(y(mark), String(Math.round(mark)));
    for (const mark of [0, last / 2, last]) {
      const anchor = mark === 0 ? "start" : mark === last ? "end" : "middle";
      this.add("text", { x: x(mark), y: 134, "text-anchor": anchor }, `${mark.toFixed(last < 3 ? 2 : 1)} s`);
    }
    this.line("plain", x, y);
    this.line("run", x, y);
  }

  line(series, x, y) {
    const points = this[series];
    if (points.length < 2) return;
    let path = `M${x(points[0][0])} ${y(points[0][1])}`;
    for (let i = 1; i < points.length; i += 1) {
      path += `H${x(points[i][0]).toFixed(1)}V${y(points[i][1]).toFixed(1)}`;
    }
    this.add("path", { d: path, class: `curve ${series}` });
    const [seconds, tokens] = points[Math.floor(points.length * 0.55)];
    const text = series === "run" ? "this run" : "plain";
    const before = series === "run";
    this.add("text", {
      x: x(seconds) + (before ? -6 : 8), y: y(tokens) + (before ? -6 : 12),
      "text-anchor": before ? "end" : "start", class: `curve-name ${series}`,
    }, text);
  }
}

const BRANCHES = [
  ["correction", "correction", "reused-correction"],
  ["continuation", "continuation", "reused-continuation"],
  ["position", "position", "reused-position"],
];

/** Offered against hit branches, by kind. */
export class BranchMeters {
  constructor(root) {
    this.rows = new Map();
    for (const [kind, name, colour] of BRANCHES) {
      const row = document.createElement("div");
      row.className = "branch";
      const label = document.createElement("span");
      label.textContent = name;
      const meter = document.createElement("div");
      meter.className = "meter";
      const bar = document.createElement("span");
      bar.style.background = `var(--${colour}-bar)`;
      meter.append(bar);
      const count = document.createElement("span");
      count.className = "count";
      row.append(label, meter, count);
      root.append(row);
      this.rows.set(kind, { row, bar, count });
    }
    this.clear();
  }

  clear() {
    this.offered = new Map();
    this.hits = new Map();
    this.#draw();
  }

  add(round) {
    for (const { kind } of round.branches) this.offered.set(kind, (this.offered.get(kind) ?? 0) + 1);
    const hit = round.hit >= 0 ? round.branches[round.hit] : undefined;
    if (hit) this.hits.set(hit.kind, (this.hits.get(hit.kind) ?? 0) + 1);
    this.#draw();
  }

  #draw() {
    for (const [kind, { row, bar, count }] of this.rows) {
      const offered = this.offered.get(kind) ?? 0;
      const hits = this.hits.get(kind) ?? 0;
      bar.style.width = offered ? `${(100 * hits) / offered}%` : "0";
      count.textContent = offered ? `${hits} of ${offered} hit` : "none yet";
      row.hidden = kind === "position" && !offered;
    }
  }
}
