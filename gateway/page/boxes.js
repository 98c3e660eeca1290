// The table of sandboxes: living ones, or those that have ended, with why.

import { $, h, say, show, span } from "./dom.js";

const SHOWN_MAX = 200;
const LIVING = ["State", "Sandbox", "Image", "Pool", "Run and labels", "Node", "Age", "Ends in", ""];
const ENDED = ["Reason", "Sandbox", "Why", "Run", "Ended"];
/** Ends that nobody needs to look into. */
const USUAL = ["released", "expired", "idle"];

const state = { kind: "living", living: [], ended: [], open: () => {} };
/** Row by id, so that a row that stays keeps its focus and its selection. */
let rows = new Map();

export function begin(open) {
  state.open = open;
  for (const kind of ["living", "ended"]) {
    $(kind).addEventListener("click", () => choose(kind));
  }
  $("filter").addEventListener("input", draw);
  choose("living");
}

export const isEnded = () => state.kind === "ended";

function choose(kind) {
  state.kind = kind;
  for (const one of ["living", "ended"]) $(one).setAttribute("aria-pressed", String(one === kind));
  rows = new Map();
  $("boxes").tBodies[0].replaceChildren();
  $("boxes").className = kind;
  const titles = kind === "living" ? LIVING : ENDED;
  const cell = (title) => (title ? h("th", { scope: "col" }, title) : h("td"));
  $("boxes").tHead.replaceChildren(h("tr", {}, ...titles.map(cell)));
  draw();
  document.dispatchEvent(new CustomEvent("sandman:look"));
}

export function take(kind, sandboxes) {
  const time = (one) => Date.parse(kind === "living" ? one.created_at : one.ended.at) || 0;
  state[kind] = sandboxes.sort((a, b) => time(b) - time(a) || (a.id < b.id ? -1 : 1));
  if (kind === state.kind) draw();
}

export function forget() {
  state.living = state.ended = [];
  draw();
}

function draw() {
  const all = state[state.kind];
  const wanted = $("filter").value.trim().toLowerCase();
  const found = wanted ? all.filter((one) => text(one).includes(wanted)) : all;
  const shown = found.slice(0, SHOWN_MAX);
  const body = $("boxes").tBodies[0];
  const next = new Map(shown.map((one) => [one.id, rows.get(one.id) ?? row(one)]));
  for (const [id, old] of rows) if (!next.has(id)) old.remove();
  shown.forEach((one, i) => {
    const line = next.get(one.id);
    fill(line, one);
    if (body.rows[i] !== line) body.insertBefore(line, body.rows[i] ?? null);
  });
  rows = next;
  say($("boxes-count"), all.length ? `${found.length === all.length ? all.length : `${found.length} of ${all.length}`}` : "");
  show($("boxes"), found.length > 0);
  empty(all.length, found.length);
  show($("boxes-more"), found.length > SHOWN_MAX);
  say($("boxes-more"), `${found.length - SHOWN_MAX} more are not shown: narrow them down with the filter.`);
}

function empty(all, found) {
  show($("boxes-empty"), !found);
  if (all && !found) say($("boxes-empty"), "None of them matches the filter.");
  else if (state.kind === "ended") say($("boxes-empty"), "None has ended that the gateway remembers.");
  else say($("boxes-empty"), "You have no sandbox. Start one with “sandman run -- uname -a”, or from Python with client.sandbox(image=…).");
}

const text = (one) =>
  [one.id, one.image, one.pool, one.run, one.state, one.node, one.ended?.reason, one.ended?.detail, ...labels(one)].join(" ").toLowerCase();

const labels = (one) => Object.entries(one.labels ?? {}).map(([name, value]) => `${name}=${value}`);

function row(one) {
  const columns = (state.kind === "living" ? LIVING : ENDED).length;
  const line = h("tr", { "data-id": one.id }, ...Array.from({ length: columns }, () => h("td")));
  line.cells[1].replaceWith(h("th", { scope: "row", title: one.id }, h("code", {}, one.id)));
  if (state.kind === "living") {
    const button = h("button", { type: "button", onclick: () => state.open(one.id), "aria-label": `Terminal in ${one.id}` }, "Terminal");
    line.cells[8].append(button);
  }
  return line;
}

function fill(line, one) {
  if (state.kind === "ended") {
    mark(line.cells[0], USUAL.includes(one.ended.reason) ? "usual" : "bad", one.ended.reason);
    say(line.cells[2], one.ended.detail ?? "");
    say(line.cells[3], one.run ?? "–");
    say(line.cells[4], one.ended.at ? `${span((Date.now() - Date.parse(one.ended.at)) / 1000)} ago` : "–");
    return;
  }
  // From then on calls are refused; its pod goes a little later.
  const isOver = Date.parse(one.expires_at) < Date.now();
  const reason = one.ended?.reason ?? (isOver ? "expired" : null);
  const name = isOver ? "ending" : one.state;
  mark(line.cells[0], reason && !USUAL.includes(reason) ? "bad" : name, reason ? `${name}: ${reason}` : name);
  say(line.cells[2], one.image ?? "–");
  line.cells[2].title = one.image ?? "";
  say(line.cells[3], [one.pool, one.tier].filter(Boolean).join(", ") || "–");
  tags(line.cells[4], one);
  say(line.cells[5], one.node ?? "–");
  say(line.cells[6], one.created_at ? span((Date.now() - Date.parse(one.created_at)) / 1000) : "–");
  say(line.cells[7], one.expires_at ? span((Date.parse(one.expires_at) - Date.now()) / 1000) : "–");
  line.cells[8].firstChild.disabled = isOver || one.state !== "ready";
}

function mark(cell, kind, words) {
  if (cell.dataset.kind === kind && cell.textContent === words) return;
  cell.dataset.kind = kind;
  cell.replaceChildren(h("span", { class: `state ${kind}` }, words));
}

function tags(cell, one) {
  const wanted = [...(one.run ? [one.run] : []), ...labels(one)];
  if (cell.dataset.tags === wanted.join("\n")) return;
  cell.dataset.tags = wanted.join("\n");
  const made = wanted.map((words, i) => h("span", { class: one.run && i === 0 ? "tag run" : "tag", title: words }, words));
  cell.replaceChildren(...(made.length ? made : ["–"]));
}
