// The page: wires the form, the runs and the views together.

import { BranchMeters, RoundPlot, Timeline } from "/page/plots.js";
import { ApiError, rounds, serverInfo } from "/page/stream.js";
import { Legend, Transcript } from "/page/transcript.js";

const EXAMPLES = [
  ["Eggs", "Gina has 14 eggs. Then Gina gives 5 eggs to Chloe. Then Chloe gives Gina 2 eggs. How many eggs does Gina have in the end?"],
  ["Cookies", "Kevin shares 36 cookies equally among six shelves. Then Kevin takes 2 cookies out of one shelf for Ben. How many cookies are left in that shelf?"],
  ["Candles", "Tom shares 18 candles equally among two baskets. Then Tom takes 3 candles out of one basket for Lily. How many candles are left in that basket?"],
];
const FIXED_BLOCK = new Set(["linear", "tidar", "dflash", "overlap"]);

const $ = (id) => document.getElementById(id);
const form = $("ask");
let model = "";
let running = null;

const transcript = new Transcript($("text"), $("tip"), (number) => light(number));
const legend = new Legend($("legend"));
const plot = new RoundPlot($("rounds"), (number) => light(number));
const timeline = new Timeline($("timeline"));
const meters = new BranchMeters($("branches"));

function light(number) {
  plot?.light(number);
  transcript?.light(number);
}

function fact(name, value) {
  const row = document.createElement("div");
  const term = document.createElement("dt");
  const detail = document.createElement("dd");
  term.textContent = name;
  detail.textContent = value;
  row.append(term, detail);
  return row;
}

async function greet() {
  $("base").textContent = `${location.origin}/v1`;
  transcript.clear("The answer appears here. Hover a token, or move with the arrow keys, to see its round and margin.");
  try {
    const info = await serverInfo($("key").value);
    model = info.model.name;
    $("facts").replaceChildren(
      fact("model", info.model.name),
      fact("device", info.model.device),
      fact("text", info.lossless.level === "bit-equal" ? "equal to plain decoding" : "equal up to ties"),
    );
    const chosen = $("method").value || info.default_method;
    $("method").replaceChildren(...info.methods.map((name) => new Option(name, name, false, name === chosen)));
    $("key-label").hidden = true;
    showError("");
    updateBlock();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) $("key-label").hidden = false;
    showError(error.message);
  }
}

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function updateBlock() {
  $("block-label").hidden = !FIXED_BLOCK.has($("method").value);
}

function request(speculation) {
  return {
    model,
    messages: [{ role: "user", content: $("prompt").value }],
    max_tokens: Number($("tokens").value),
    temperature: Number($("temperature").value),
    seed: 1,
    speculation,
  };
}

function wish() {
  const method = $("method").value;
  const block = $("block").value;
  return FIXED_BLOCK.has(method) && block ? { method, block_size: Number(block) } : { method };
}

function clear() {
  transcript.clear();
  legend.clear();
  plot.clear();
  timeline.clear();
  meters.clear();
  for (const id of ["tps", "ar-tps", "tau", "forwards", "same"]) {
    $(id).textContent = "–";
    $(id).className = "";
  }
  $("ar-note").textContent = "tokens/s, not run yet";
  $("same-note").textContent = "as plain decoding";
  $("forwards-note").textContent = "of the model";
  showError("");
}

// Speed counts the tokens behind the first, over the time since it, by the server's clock.
function speed(tokens, seconds) {
  return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
}

function number(value, digits = 0) {
  return value === null ? "–" : value.toFixed(digits);
}

/** Run once; `series` is "run" or "plain". Returns the end event. */
async function follow(body, series, onRound) {
  let first = null;
  let tokens = 0;
  let end = null;
  for await (const event of rounds(body, $("key").value, running.signal)) {
    if (event.type === "end") end = event;
    if (event.type !== "round") continue;
    if (event.tokens.length) {
      tokens += event.tokens.length;
      first ??= event.at_ms;
      const seconds = (event.at_ms - first) / 1e3;
      timeline.push(series, seconds, tokens);
      $(series === "run" ? "tps" : "ar-tps").textContent = number(speed(tokens, seconds));
    }
    onRound(event);
  }
  return end;
}

async function measured() {
  let count = 0;
  $("status").textContent = "drafting and checking";
  const end = await follow(request(wish()), "run", (round) => {
    if (round.block) {
      count += 1;
      plot.push(round);
      meters.add(round);
    }
    transcript.add(round, round.block ? count : 0);
    legend.add(round);
  });
  const spec = end.usage.speculation;
  $("tps").textContent = number(speed(end.tokens.length, end.decode_seconds));
  $("tau").textContent = number(spec.tau, 2);
  $("forwards").textContent = String(spec.forwards);
  $("forwards-note").textContent = `for ${end.tokens.length} tokens in ${spec.rounds} rounds`;
  $("status").textContent = `${end.tokens.length} tokens, ended by ${end.finish}; first after ${end.ttft_ms.toFixed(0)} ms`;
  return end;
}

async function compared(end) {
  $("ar-note").textContent = "running the same prompt …";
  const plain = await follow(request({ enabled: false }), "plain", () => {});
  const ours = speed(end.tokens.length, end.decode_seconds);
  const theirs = speed(plain.tokens.length, plain.decode_seconds);
  $("ar-tps").textContent = number(theirs);
  $("ar-note").textContent = ours && theirs
    ? `tokens/s; this run: ${(ours / theirs).toFixed(2)}× of it` : "tokens/s";
  const differs = end.tokens.findIndex((token, i) => token !== plain.tokens[i]);
  const same = differs < 0 && end.tokens.length === plain.tokens.length;
  $("same").textContent = same ? "yes" : "no";
  $("same").className = same ? "good" : "bad";
  $("same-note").textContent = same
    ? `all ${end.tokens.length} tokens equal` : `first difference at token ${differs + 1}`;
}

async function run() {
  if (running || !$("prompt").value.trim()) return;
  running = new AbortController();
  clear();
  $("go").disabled = true;
  $("stop").hidden = false;
  try {
    const end = await measured();
    if ($("race").checked && end) await compared(end);
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "stopped";
    else {
      $("status").textContent = "failed";
      showError(error.message);
      if (error.status === 401) $("key-label").hidden = false;
    }
  } finally {
    running = null;
    $("go").disabled = false;
    $("stop").hidden = true;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
$("stop").addEventListener("click", () => running?.abort());
$("method").addEventListener("change", updateBlock);
$("key").addEventListener("change", greet);
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  if (event.key === "Escape") running?.abort();
});
for (const [name, text] of EXAMPLES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.title = text;
  button.addEventListener("click", () => {
    $("prompt").value = text;
    $("prompt").focus();
  });
  $("examples").append(button);
}
$("prompt").value = EXAMPLES[0][1];
greet();
