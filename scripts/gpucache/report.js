// SPDX-License-Identifier: BSD-2-Clause
// What the page of a report does: the table from A to B, the flame graph, light and dark. Words of
// the trace become text nodes and nothing else.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const find = (words, under = document) => under.querySelector(words);
const ROWS = 8, FLAME_ROW = 30, FLAME_LEAST = 0.002, NEAR_STEP = 100;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0, value = Math.abs(bytes);
  while (value >= 1023.5 && power < 4) {
    value /= 1024;
    power += 1;
  }
  const digits = value >= 99.95 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
  return `${bytes < 0 ? "−" : ""}${digits} ${units[power]}`;
}

// step: what the digits tell apart.
function time(ns, step = data.width) {
  const [factor, unit] = data.span >= 1e9 ? [1e9, "s"] : data.span >= 1e6 ? [1e6, "ms"] :
    [1e3, "µs"];
  const digits = Math.min(step < data.width ? 9 : 6,
    Math.max(0, Math.ceil(Math.log10(factor / step)) - 1));
  return `${(ns / factor).toFixed(digits)} ${unit}`;
}

// The highest moment of a column.
function when(column) {
  return time(data.at[column], column < data.slots.length ? data.width :
    Math.min(data.width, NEAR_STEP));
}

// An element: its name, its attributes, and what it holds: words or elements.
function make(name, attributes, ...inside) {
  const svg = ["g", "line", "rect", "path", "text", "title"].includes(name);
  const its = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) :
    document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {}))
    key === "style" ? its.style.cssText = value : its.setAttribute(key, value);
  its.append(...inside);
  return its;
}

const colour = owner => `var(--c${Math.min(owner, 8)})`;
const dot = owner => make("i", {class: "dot", style: `background:${colour(owner)}`});

function sums(steps) {
  let value = 0;
  return steps.map(step => value += step);
}

function live(moment) {
  return data.series.map(its => moment === "exit" ? its.exit : its.held[moment]);
}

function showChanges(a, b) {
  const before = live(a), after = live(b), body = find("#changes tbody");
  const total = values => values.reduce((x, y) => x + y, 0);
  const rows = data.series.map((its, i) => [its, before[i], after[i], after[i] - before[i]])
    .filter(row => row[3]).sort((x, y) => Math.abs(y[3]) - Math.abs(x[3]));
  const most = Math.abs(rows.length ? rows[0][3] : 1);
  const plus = bytes => (bytes > 0 ? "+" : "") + size(bytes);
  find("#changed").replaceChildren(
    `${size(total(before))} at ${when(a)} → ${size(total(after))} at ${when(b)}: `,
    make("b", {}, plus(total(after) - total(before))));
  const shown = rows.slice(0, ROWS).map(([its, x, y, change]) => make("tr", {},
    make("td", {title: its.detail || its.name}, dot(its.owner), its.name,
      make("small", {title: its.where}, its.where)),
    make("td", {class: "n"}, x ? size(x) : "–"), make("td", {class: "n"}, y ? size(y) : "–"),
    make("td", {}, make("i", {class: "meter", style: `background:${colour(its.owner)};` +
      `width:${55 * Math.abs(change) / most}%`}), plus(change))));
  const rest = rows.slice(ROWS);
  if (rest.length)
    shown.push(make("tr", {}, make("td", {}, `${rest.length} more`), make("td"), make("td"),
      make("td", {}, plus(total(rest.map(row => row[3]))))));
  if (!rows.length)
    shown.push(make("tr", {}, make("td", {colspan: 4}, "nothing")));
  body.replaceChildren(...shown);
}

// The root, libraries, and under each the functions of call paths, from the outermost on.
function tree(values) {
  const root = {name: "live", bytes: 0, under: [], owner: -1, key: ""};
  const nodes = new Map([["", root]]);
  data.series.forEach((its, i) => {
    if (values[i] <= 0)
      return;
    root.bytes += values[i];
    let above = root;
    for (const name of [data.owners[its.owner], ...its.callers || [], its.name]) {
      const key = `${above.key}\n${name}`;
      if (!nodes.has(key)) {
        nodes.set(key, {name, bytes: 0, under: [], owner: its.owner, above, key});
        above.under.push(nodes.get(key));
      }
      above = nodes.get(key);
      above.bytes += values[i];
    }
    above.more = [its.where, its.detail].filter(words => words).join("\n");
  });
  return {root, nodes};
}

function showFlame(values, chosen) {
  const {root, nodes} = tree(values), area = find(".flame"), boxes = [];
  const top = chosen && nodes.get(chosen.key) || root;
  const path = node => node ? [...path(node.above), node] : [];
  let depth = 0;
  const put = (node, row, left, width) => {
    if (width < FLAME_LEAST)
      return;
    depth = Math.max(depth, row);
    const share = root.bytes ? (100 * node.bytes / root.bytes).toFixed(1) : 0;
    const its = make("button", {type: "button",
      title: `${node.name} · ${size(node.bytes)} · ${share} %` +
        (node.more ? "\n" + node.more : ""),
      style: `top:${row * FLAME_ROW}px;left:${100 * left}%;width:${100 * width}%;background:` +
        (node.owner < 0 ? "var(--idle)" : `color-mix(in srgb, ${colour(node.owner)} ` +
          `${row === 1 ? 55 : 32}%, var(--card))`)},
      `${node.name} `, make("b", {}, size(node.bytes)));
    its.addEventListener("click", () => showFlame(values, node));
    boxes.push(its);
    let at = left;
    for (const each of node.under.sort((x, y) => y.bytes - x.bytes)) {
      put(each, row + 1, at, width * each.bytes / (node.bytes || 1));
      at += width * each.bytes / (node.bytes || 1);
    }
  };
  const above = path(top.above);
  above.forEach((node, row) => put({...node, under: []}, row, 0, 1));
  put(top, above.length, 0, 1);
  area.style.height = `${(depth + 1) * FLAME_ROW}px`;
  area.replaceChildren(...boxes);
}

function startTheme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  find("#theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    dispatchEvent(new Event("theme"));
  });
  dark.addEventListener("change", () => dispatchEvent(new Event("theme")));
}

// The columns of a stretch, behind all others.
function addNear(its) {
  const starts = sums(its.starts), held = data.series.map(() => 0);
  const none = starts.map(() => 0);
  const push = (to, from) => from.forEach(value => to.push(value));
  its.first = data.starts.length;
  let place = 0;
  starts.forEach(() => {
    for (let left = its.changes[place++]; left; left--, place += 2)
      held[its.changes[place]] += its.changes[place + 1];
    data.series.forEach((series, i) => series.held.push(held[i]));
  });
  push(data.starts, starts.map(ns => ns / data.width));
  push(data.at, sums(its.at));
  push(data.reserved, sums(its.reserved));
  push(data.away, its.away ? sums(its.away) : none);
  push(data.away_live, its.away ? sums(its.away_live) : none);
}

function startPicture() {
  data.at = sums(data.at);
  data.slots = sums(data.slots);
  data.reserved = sums(data.reserved);
  data.away_live = data.away ? sums(data.away_live) : data.reserved.map(() => 0);
  data.away = data.away ? sums(data.away) : data.reserved.map(() => 0);
  data.series.forEach(its => its.held = sums(its.held));
  data.starts = [...data.slots];
  data.near.forEach(addNear);
  let flameAt = "peak";
  const buttons = document.querySelectorAll("#flame [data-at]");
  const flame = line => {
    buttons.forEach(its => its.setAttribute("aria-pressed", its.dataset.at === flameAt));
    showFlame(live(flameAt === "exit" ? "exit" : line[flameAt]));
  };
  const line = new Timeline(() => {
    showChanges(line.a, line.b);
    if (flameAt === "a" || flameAt === "b")
      flame(line);
  });
  buttons.forEach(its => its.addEventListener("click", () => {
    flameAt = its.dataset.at;
    flame(line);
  }));
  line.start();
  showChanges(line.a, line.b);
  flame(line);
}

startTheme();
if (data.series.length)
  startPicture();
if (data.maps.length)
  startMap();
