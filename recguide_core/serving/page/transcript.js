// The answer as coloured tokens, with a tooltip and keyboard movement.

export const KINDS = [
  ["draft", "accepted draft", "Drafted by the model with the block ahead, then confirmed."],
  ["reused-correction", "reused correction branch", "Drafted beside the last check, for the case that it failed just here."],
  ["reused-continuation", "reused continuation", "Drafted beside the last check, for the case that all of it held."],
  ["reused-position", "reused position (TiDAR)", "Drafted beside the last check, for this acceptance length."],
  ["correction", "correction", "The check disagreed with the draft here and gave this token instead."],
  ["bonus", "bonus", "The whole block held, and the check gave one more token."],
  ["ar", "plain step", "One forward, one token, nothing drafted."],
  ["prefill", "first token", "Given by the prompt's own forward."],
];
const NAMES = new Map(KINDS.map(([kind, name, text]) => [kind, { name, text }]));

export class Transcript {
  constructor(root, tip, onRound) {
    this.root = root;
    this.tip = tip;
    this.onRound = onRound;
    this.clear();
    root.addEventListener("pointerover", (event) => this.#show(event.target.closest(".tok")));
    root.addEventListener("pointerleave", () => this.#hide());
    root.addEventListener("scroll", () => this.#hide());
    root.addEventListener("blur", () => this.#hide());
    root.addEventListener("keydown", (event) => this.#move(event));
  }

  clear(note = "") {
    if (this.tokens) this.#hide();
    this.tokens = [];
    this.cursor = -1;
    this.root.replaceChildren();
    if (note) {
      const empty = document.createElement("p");
      empty.className = "empty";
      empty.textContent = note;
      this.root.append(empty);
    }
  }

  /** Add the tokens of a round; `number` is 0 for the prompt's own token. */
  add(round, number) {
    const atEnd = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < 60;
    round.tokens.forEach((token, place) => {
      const span = document.createElement("span");
      span.className = `tok new ${token.kind}${place === 0 ? " turn" : ""}`;
      span.textContent = token.text;
      this.root.append(span);
      this.tokens.push({ span, token, round, number, place });
    });
    if (atEnd) this.root.scrollTop = this.root.scrollHeight;
  }

  /** Outline the tokens of one round. */
  light(number) {
    for (const entry of this.tokens) entry.span.classList.toggle("lit", entry.number === number && number > 0);
  }

  #move(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || !this.tokens.length) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(this.tokens.length - 1, this.cursor + steps[event.key]));
    this.#show(this.tokens[next].span);
    this.tokens[next].span.scrollIntoView({ block: "nearest" });
  }

  #show(span) {
    const index = this.tokens.findIndex((entry) => entry.span === span);
    if (index < 0) return;
    this.#hide();
    this.cursor = index;
    const { token, round, number, place } = this.tokens[index];
    span.classList.add("at");
    this.onRound(number);
    const name = NAMES.get(token.kind);
    this.tip.replaceChildren(
      line("strong", name.name),
      line("div", name.text),
      line("div", number
        ? `Round ${number}, token ${place + 1} of ${round.tokens.length}; block ${round.block}`
        : "Before the first round"),
      line("div", margin(token)),
      line("code", JSON.stringify(token.text)),
    );
    this.tip.hidden = false;
    const box = span.getBoundingClientRect();
    const size = this.tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left), innerWidth - size.width - 8);
    const above = box.top - size.height - 8;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
  }

  #hide() {
    this.tip.hidden = true;
    if (this.cursor < 0) return;
    this.tokens[this.cursor]?.span.classList.remove("at");
    this.onRound(0);
  }
}

function margin(token) {
  const drafted = token.kind === "draft" || token.kind.startsWith("reused");
  if (!drafted) return "Not drafted, so without a draft margin";
  return `Draft margin ${token.margin.toFixed(3)} (best minus second probability)`;
}

function line(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

/** The legend with live counts. */
export class Legend {
  constructor(root) {
    this.items = new Map();
    for (const [kind, name] of KINDS) {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.className = kind;
      const count = document.createElement("b");
      item.append(swatch, name, count);
      item.title = NAMES.get(kind).text;
      root.append(item);
      this.items.set(kind, { item, count });
    }
    this.clear();
  }

  clear() {
    this.counts = new Map();
    this.#draw();
  }

  add(round) {
    for (const { kind } of round.tokens) this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1);
    this.#draw();
  }

  #draw() {
    for (const [kind, { item, count }] of this.items) {
      const value = this.counts.get(kind) ?? 0;
      count.textContent = value || "";
      item.classList.toggle("none", value === 0);
    }
  }
}
