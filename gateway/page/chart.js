// Allocations as points: when, and how long it took, on a scale where each line is ten times the one below.

import { $, duration, h, say, show, svg } from "./dom.js";

const WINDOW_MS = 15 * 60_000;
/** Minutes that the chart may show: as few as hold all points. */
const SPANS = [1, 3, 6, 15];
const KEPT_MAX = 2000;
const TIERS = ["warm", "swap", "cold"];
const BOX = { width: 640, height: 236, left: 52, right: 12, top: 10, bottom: 26 };

/** Samples by what tells them apart: the gateway remembers the last 256, this page more while it is open. */
const samples = new Map();
let clockAhead = 0;

export function take(overview) {
  clockAhead = Date.parse(overview.now) - Date.now();
  for (const one of overview.allocations) {
    samples.set(`${one.at} ${one.tier} ${one.total_ms}`, { ...one, time: Date.parse(one.at) });
  }
  const since = Date.now() + clockAhead - WINDOW_MS;
  for (const [key, one] of samples) {
    if (one.time < since || samples.size > KEPT_MAX) samples.delete(key);
  }
}

export function forget() {
  samples.clear();
}

/** The value that this share of them does not exceed. */
export function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)];
}

const times = (those) => those.map((one) => one.total_ms).sort((a, b) => a - b);

export function median() {
  const all = times([...samples.values()]);
  if (!all.length) return null;
  return { p50: quantile(all, 0.5), p95: quantile(all, 0.95), count: all.length };
}

export function draw() {
  const all = [...samples.values()].sort((a, b) => a.time - b.time);
  show($("chart-empty"), !all.length);
  show($("chart"), all.length > 0);
  drawLegend(all);
  if (all.length) $("chart").replaceChildren(picture(all));
}

function drawLegend(all) {
  const rows = TIERS.map((tier) => [tier, times(all.filter((one) => one.tier === tier))]).filter(([, of]) => of.length);
  const texts = rows.map(([tier, of]) => [tier, `${tier}: ${of.length}, median ${duration(quantile(of, 0.5))}, p95 ${duration(quantile(of, 0.95))}`]);
  const list = $("legend");
  if (list.textContent === texts.map(([, text]) => text).join("")) return;
  list.replaceChildren(...texts.map(([tier, text]) => h("li", {}, svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, mark(tier, 6, 6)), text)));
}

function picture(all) {
  const most = Math.max(1000, ...all.map((one) => one.total_ms));
  const least = Math.min(10, ...all.map((one) => Math.max(one.total_ms, 0.1)));
  const [low, high] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const now = Date.now() + clockAhead;
  const minutes = SPANS.find((most) => now - all[0].time < most * 60_000) ?? SPANS.at(-1);
  const x = (time) => BOX.left + (1 - (now - time) / (minutes * 60_000)) * (BOX.width - BOX.left - BOX.right);
  const y = (ms) => BOX.top + (1 - (Math.log10(Math.max(ms, 0.1)) - low) / (high - low)) * (BOX.height - BOX.top - BOX.bottom);
  const spoken = `${all.length} allocations in the last 15 minutes; the median took ${duration(median().p50)}, 95 of 100 at most ${duration(median().p95)}.`;
  const chart = svg("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": spoken });
  for (let power = low; power <= high; power += 1) {
    const at = y(10 ** power);
    chart.append(
      svg("line", { class: "grid", x1: BOX.left, x2: BOX.width - BOX.right, y1: at, y2: at }),
      svg("text", { class: "axis", x: BOX.left - 8, y: at + 4, "text-anchor": "end" }, round(10 ** power)),
    );
  }
  for (const part of [3, 2, 1, 0]) {
    const ago = (minutes * 60 * part) / 3;
    const anchor = part === 0 ? "end" : part === 3 ? "start" : "middle";
    const words = ago === 0 ? "now" : ago < 60 ? `${ago} s ago` : `${ago / 60} min ago`;
    chart.append(svg("text", { class: "axis", x: x(now - ago * 1000), y: BOX.height - 6, "text-anchor": anchor }, words));
  }
  for (const one of all) {
    const point = mark(one.tier, x(one.time), y(one.total_ms));
    point.append(svg("title", {}, `${one.tier}, ${duration(one.total_ms)} (${duration(one.queued_ms)} in the queue), ${new Date(one.time).toLocaleTimeString()}`));
    chart.append(point);
  }
  return chart;
}

const round = (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

/** Each tier has a form of its own, too: colours alone are not for everybody. */
function mark(tier, x, y) {
  if (tier === "swap") return svg("rect", { class: "swap", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  if (tier === "cold") return svg("path", { class: "cold", d: `M${x} ${y - 4.5}L${x + 4.5} ${y + 3.5}L${x - 4.5} ${y + 3.5}Z` });
  return svg("circle", { class: "warm", cx: x, cy: y, r: 4 });
}

/** The tile. */
export function tell() {
  const found = median();
  say($("median"), found ? duration(found.p50) : "–");
  say($("median-note"), found ? `p95 ${duration(found.p95)}, of ${found.count} in 15 min` : "nothing was allocated lately");
}
