// The page: log in, look every few seconds, say what is wrong and what to do about it.

import { advice, call, Problem, token } from "./api.js";
import * as boxes from "./boxes.js";
import * as chart from "./chart.js";
import { $, bytes, h, say, show, span } from "./dom.js";

const GLANCE_MS = 2000;
/** Of the list at least, and ten times what it took: the list of ten thousand sandboxes is no light thing. */
const LIST_MS = 3000;

/** One for each login: what is still under way for an earlier one ends by itself. */
let visit = null;

function enter() {
  visit = { over: false, listAt: 0, look: null };
  show($("login"), false);
  show($("board"), true);
  show($("leave"), true);
  show($("live"), true);
  say($("live-text"), "asking…");
  round(visit);
}

function leave(why = "") {
  if (visit) visit.over = true;
  visit = null;
  token.forget();
  chart.forget();
  boxes.forget();
  closeTerminal();
  for (const id of ["board", "leave", "live", "trouble"]) show($(id), false);
  say($("who"), "");
  show($("login"), true);
  say($("login-error"), why);
  $("token").setAttribute("aria-invalid", String(Boolean(why)));
  $("token").value = "";
  $("token").focus();
}

/** Look, and again, until the visit is over. */
async function round(one) {
  let misses = 0;
  while (!one.over) {
    try {
      await look(one);
      misses = 0;
      if (one.over) return;
      show($("trouble"), false);
      live(true, `as of ${new Date().toLocaleTimeString()}`);
    } catch (error) {
      if (one.over) return;
      const problem = error instanceof Problem ? error : new Problem(500, { detail: String(error) });
      if (problem.status === 401) return leave(advice(problem));
      misses += 1;
      live(false, "not up to date");
      say($("trouble"), advice(problem));
      show($("trouble"), true);
    }
    await pause(one, GLANCE_MS * Math.min(2 ** misses, 8));
  }
}

/** Until it is time, or somebody wants to look; and for as long as nobody sees the page. */
async function pause(one, ms) {
  await new Promise((done) => {
    one.look = done;
    setTimeout(done, ms);
  });
  while (document.hidden && !one.over) {
    await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
  }
}

async function look(one) {
  const [overview, { pools }] = await Promise.all([call("GET", "/v1/overview"), call("GET", "/v1/pools")]);
  if (one.over) return;
  glance(overview, pools);
  if (Date.now() < one.listAt) return;
  const kind = boxes.isEnded() ? "ended" : "living";
  const begun = Date.now();
  const { sandboxes } = await call("GET", kind === "ended" ? "/v1/sandboxes?state=ended" : "/v1/sandboxes");
  if (one.over) return;
  boxes.take(kind, sandboxes);
  one.listAt = Date.now() + Math.max(LIST_MS - GLANCE_MS / 2, 10 * (Date.now() - begun));
}

function glance({ tenant, queue, ...overview }, pools) {
  const { concurrent } = tenant.limits;
  say($("who"), `${tenant.name}, by key ${tenant.key}`);
  say($("held"), String(tenant.sandboxes));
  say($("held-note"), concurrent === null ? "no limit of their number" : `of ${concurrent} at most`);
  say($("waiting"), String(tenant.waiting));
  const others = `${queue.waiting} of all tenants, ${queue.claiming + queue.cold} are being made`;
  say($("waiting-note"), tenant.waiting ? `the oldest for ${span(tenant.oldest_s)}; ${others}` : others);
  const sum = (name) => pools.reduce((total, pool) => total + pool[name], 0);
  say($("free"), String(sum("free")));
  say($("free-note"), `of ${sum("wanted")} that are wanted`);
  drawPools(pools);
  drawTenant(tenant);
  chart.take(overview);
  chart.tell();
  chart.draw();
}

function drawPools(pools) {
  show($("pools"), pools.length > 0);
  show($("pools-empty"), !pools.length);
  const numbers = ["free", "wanted", "leased", "reserved", "max"];
  const lines = pools.map((pool) => {
    const share = h("meter", { min: 0, max: Math.max(pool.wanted, pool.free, 1), value: pool.free, "aria-label": `Free placeholders of ${pool.name}`, title: `${pool.free} of ${pool.wanted} free` });
    const name = [h("code", {}, pool.name), h("span", { class: "note", title: pool.image }, pool.image)];
    if (pool.broken) name.push(h("span", { class: "state bad" }, `stopped: ${pool.broken}`));
    return h("tr", {}, h("th", { scope: "row" }, ...name), h("td", {}, share), ...numbers.map((key) => h("td", { class: "n" }, String(pool[key] ?? "–"))));
  });
  $("pools").tBodies[0].replaceChildren(...lines);
}

function drawTenant({ limits, weight }) {
  const facts = [
    ["Weight in the queue", String(weight)],
    ["Sandboxes at once", limits.concurrent ?? "no limit"],
    ["New ones a second", limits.rate ?? "no limit"],
    ["Cores", limits.cpu ?? "no limit"],
    ["Memory", limits.memory === null ? "no limit" : bytes(limits.memory)],
  ];
  $("tenant").replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
}

function live(isLive, words) {
  $("live").dataset.live = String(isLive);
  say($("live-text"), words);
}

// --- the terminal ---

let terminal = null;
/** How often one was opened or closed: whoever has loaded its code by then may be too late. */
let turns = 0;

async function openTerminal(sandbox) {
  closeTerminal();
  const turn = turns;
  show($("terminal"), true);
  say($("terminal-id"), sandbox);
  say($("terminal-state"), "opening…");
  try {
    const { Terminal } = await import("./terminal.js");
    if (turn !== turns) return;
    terminal = new Terminal($("screen"), sandbox, (words) => say($("terminal-state"), words));
    $("terminal").scrollIntoView({ block: "end" });
    await terminal.open();
  } catch (error) {
    say($("terminal-state"), error instanceof Problem ? advice(error) : String(error.message ?? error));
  }
}

function closeTerminal() {
  turns += 1;
  terminal?.close();
  terminal = null;
  show($("terminal"), false);
}

// --- the beginning ---

$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  say($("login-error"), "");
  if (token.set($("token").value)) enter();
  else leave("A token is one word of letters, digits and signs: copy it whole, without spaces.");
});
$("leave").addEventListener("click", () => leave());
$("terminal-close").addEventListener("click", () => {
  const id = $("terminal-id").textContent;
  closeTerminal();
  // Where the keyboard was before.
  document.querySelector(`tr[data-id="${CSS.escape(id)}"] button`)?.focus();
});
document.addEventListener("sandman:look", () => {
  if (visit) visit.listAt = 0;
  visit?.look?.();
});
boxes.begin(openTerminal);
if (token.get()) enter();
else leave();
