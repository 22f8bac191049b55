// SPDX-License-Identifier: BSD-2-Clause
// The picture of memory over time. A moment is a slot: a column's place in time. Each bin of the
// picture shows its highest column, whole, so that sums stay true.
"use strict";

const HEIGHT = 340, LEFT = 66, RIGHT = 8, TOP = 74, BOTTOM = 24, FLAG_ROWS = 3;
const FLAG_LETTERS = 44, TABLE_ROWS = 200;

class Timeline {
  // moved: called when A or B is another column.
  constructor(moved) {
    this.moved = moved;
    this.columns = data.at.map((_, i) => data.series.reduce((sum, its) => sum + its.held[i], 0));
    this.num = data.slots[data.slots.length - 1] + 1;
    this.num = Math.max(this.num, Math.ceil(data.span / data.width));
    this.columnOf = new Int32Array(this.num);
    for (let slot = 0, i = 0; slot < this.num; slot++) {
      while (i + 1 < data.slots.length && data.slots[i + 1] <= slot)
        i++;
      this.columnOf[slot] = i;
    }
    Object.assign(this, {by: "owner", lo: 0, hi: this.num, a: data.a, b: data.b, peak: data.peak});
    this.svg = find("#timeline svg");
    this.nvmlSlots = sums(data.nvml_slots || []);
    this.nvml = sums(data.nvml || []);
    this.lanes = data.lanes ? new Lanes(this) : null;
  }

  // [{owner, name, bytes of a column, its series}], the lowest first.
  layers() {
    if (this.by === "site")
      return data.series.map((its, i) => ({owner: its.owner, name: its.name, where: its.where,
        of: column => its.held[column], faint: i % 2}));
    return data.owners.map((name, owner) => {
      const all = data.series.filter(its => its.owner === owner);
      return {owner, name, all, of: c => all.reduce((sum, its) => sum + its.held[c], 0)};
    });
  }

  x(slot) {
    return LEFT + (this.width - LEFT - RIGHT) * (slot - this.lo) / (this.hi - this.lo);
  }

  slot(event) {
    const box = this.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
    const slot = Math.floor(this.lo + part * (this.hi - this.lo));
    return Math.max(this.lo, Math.min(this.hi - 1, slot));
  }

  y(bytes) {
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * bytes / this.top;
  }

  // [first slot, slot behind it, column] of each bin.
  bins(most) {
    const step = Math.max(1, (this.hi - this.lo) / most), found = [];
    const height = i => this.columns[i] + data.reserved[i] / 2 ** 50;
    for (let from = this.lo; from < this.hi - 1e-6; from += step) {
      const to = Math.min(this.hi, from + step);
      let best = this.columnOf[Math.floor(from)];
      for (let slot = Math.floor(from) + 1; slot < Math.floor(to + 1e-6); slot++)
        if (height(this.columnOf[slot]) > height(best))
          best = this.columnOf[slot];
      found.push([from, to, best]);
    }
    return found;
  }

  draw() {
    this.width = find(".picture").clientWidth;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const bins = this.bins(this.width - LEFT - RIGHT), layers = this.layers();
    const held = bins.map(([, , i]) => Math.max(data.reserved[i], this.columns[i]));
    this.top = Math.max(1, ...held) * 1.04;
    const base = bins.map(() => 0), areas = [];
    const add = (of, attributes) => {
      const before = base.map(value => this.y(value).toFixed(1));
      bins.forEach(([, , i], k) => base[k] += of(i, k));
      const ends = bins.map(([from, to]) => [this.x(from).toFixed(1), this.x(to).toFixed(1)]);
      const up = ends.map(([l, r], k) => `${l} ${this.y(base[k]).toFixed(1)}H${r}`);
      const down = ends.map(([l, r], k) => `${r} ${before[k]}H${l}`).reverse();
      areas.push(make("path", {d: `M${up.join("L")}L${down.join("L")}Z`, ...attributes}));
    };
    for (const layer of layers)
      add(layer.of, {style: `fill:${colour(layer.owner)};opacity:${layer.faint ? .72 : 1}`});
    add((i, k) => Math.max(0, held[k] - base[k]), {style: "fill:var(--idle)"});
    if (bins.some(([, , i]) => data.away[i]))
      add(i => -data.away[i], {class: "away"});  // over the part that is not on the device
    this.svg.replaceChildren(...this.axes(), ...areas, ...this.flags(), this.over = make("g"));
    this.drawMarkers();
    if (this.lanes)
      this.lanes.draw();
    find("#all").hidden = this.hi - this.lo === this.num;
    if (!find("#as-table").hidden)
      this.showTable(layers);
  }

  axes() {
    const found = [], step = 2 ** Math.ceil(Math.log2(this.top / 6));
    for (let value = 0; value <= this.top; value += step)
      found.push(make("line", {class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: this.y(value),
        y2: this.y(value)}), make("text", {x: LEFT - 8, y: this.y(value) + 4,
        "text-anchor": "end"}, size(value)));
    const span = (this.hi - this.lo) * data.width, rough = span / Math.max(3, this.width / 130);
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].find(n => n * power >= rough) * power;
    const [unit, name] = span >= 1e9 ? [1e9, "s"] : span >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
    for (let n = Math.ceil(this.lo * data.width / every); n * every < this.hi * data.width; n++) {
      const x = this.x(n * every / data.width);
      found.push(make("line", {class: "grid", x1: x, x2: x, y1: TOP - 14, y2: HEIGHT - BOTTOM}),
        make("text", {x, y: HEIGHT - 6, "text-anchor": "middle"},
          `${+(n * every / unit).toPrecision(7)} ${name}`));
    }
    return found;
  }

  // Lines of what happened, one a pixel and kind; words where there is room for them.
  flags() {
    const ends = new Array(FLAG_ROWS).fill(0), lines = [], all = [], seen = new Set();
    const marks = [...data.marks, [data.at[this.peak], "peak", `peak: ${size(this.columns[
      this.peak])} live`]].sort((m, n) => (n[1] === "peak") - (m[1] === "peak") || m[0] - n[0]);
    for (const [ns, kind, what] of marks) {
      const words = what.length > FLAG_LETTERS ? `${what.slice(0, FLAG_LETTERS - 1)}…` : what;
      const x = this.x(ns / data.width), place = `${Math.round(x)} ${kind}`;
      if (x < LEFT || x > this.width - RIGHT || seen.has(place))
        continue;
      seen.add(place);
      const wide = 7 * words.length + 10, left = x + wide > this.width;
      const row = ends.findIndex(end => end <= (left ? x - wide : x));
      const y = 34 + 16 * Math.max(0, row);
      const its = name => make("g", {class: kind}, name, make("title", {}, `${time(ns)}: ${what}`));
      lines.push(its(make("line", {class: "flag", x1: x, x2: x, y1: row < 0 ? TOP - 2 : y - 10,
        y2: HEIGHT - BOTTOM})));
      if (row < 0)
        continue;
      all.push(its(make("text", {class: "words", x: left ? x - 5 : x + 5, y,
        "text-anchor": left ? "end" : "start"}, words)));
      ends[row] = left ? x : x + wide;
    }
    return [...lines, ...all];  // no line crosses words
  }

  drawMarkers() {
    const held = this.over.contains(document.activeElement) &&
      document.activeElement.dataset.name;
    const slots = {a: data.slots[this.a], b: data.slots[this.b]};
    const inside = slot => Math.max(LEFT, Math.min(this.width - RIGHT, this.x(slot + .5)));
    const [l, r] = [inside(slots.a), inside(slots.b)].sort((m, n) => m - n);
    const all = [make("rect", {class: "between", x: l, y: 20, width: r - l,
      height: HEIGHT - BOTTOM - 20})];
    for (const name of ["a", "b"]) {
      const x = inside(slots[name]);
      const its = make("g", {class: "marker", tabindex: 0, role: "slider", "data-name": name,
        "aria-label": `marker ${name.toUpperCase()}`, "aria-valuemin": 0,
        "aria-valuemax": this.num - 1, "aria-valuenow": slots[name], "aria-valuetext":
          `${time(data.at[this[name]])}, ${size(this.columns[this[name]])} live`},
      make("line", {x1: x, x2: x, y1: 18, y2: HEIGHT - BOTTOM}),
      make("rect", {class: "catch", x: x - 6, y: 0, width: 12, height: HEIGHT - BOTTOM}),
      make("rect", {x: x - 8, y: 0, width: 16, height: 19, rx: 3}),
      make("text", {x, y: 14}, name.toUpperCase()));
      its.addEventListener("pointerdown", event => this.take(event, name));
      its.addEventListener("keydown", event => this.key(event, name));
      all.push(its);
    }
    this.over.replaceChildren(...all);
    if (held)
      find(`[data-name=${held}]`, this.over).focus();
  }

  move(name, slot) {
    this[name] = this.columnOf[Math.max(0, Math.min(this.num - 1, slot))];
    this.drawMarkers();
    this.read(this[name]);
    this.moved();
  }

  key(event, name) {
    const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!way)
      return;
    event.preventDefault();
    const column = this[name] + way * (event.shiftKey ? 10 : 1);
    this.move(name, data.slots[Math.max(0, Math.min(data.slots.length - 1, column))]);
  }

  take(event, name) {
    event.preventDefault();
    event.stopPropagation();
    find(`[data-name=${name}]`, this.over).focus();
    this.drag(event, now => this.move(name, this.slot(now)));
  }

  drag(event, go, done = () => {}) {
    const end = new AbortController(), signal = end.signal;
    const stop = last => {
      end.abort();
      done(last);
    };
    addEventListener("pointermove", go, {signal});
    addEventListener("pointerup", stop, {signal});
    addEventListener("pointercancel", () => end.abort(), {signal});
  }

  zoom(event) {
    const first = this.slot(event), start = event.clientX;
    const box = make("rect", {class: "chosen", y: TOP - 14, height: HEIGHT - BOTTOM - TOP + 14});
    this.svg.append(box);
    this.drag(event, now => {
      const ends = [this.x(first), this.x(this.slot(now) + 1)].sort((m, n) => m - n);
      box.setAttribute("x", ends[0]);
      box.setAttribute("width", ends[1] - ends[0]);
    }, last => {
      box.remove();
      const [lo, hi] = [first, this.slot(last)].sort((m, n) => m - n);
      if (Math.abs(last.clientX - start) > 5)
        this.show(lo, Math.min(this.num, Math.max(hi + 1, lo + 4)));
    });
  }

  show(lo, hi) {
    Object.assign(this, {lo, hi});
    this.draw();
  }

  // What NVML said that the process had beyond what it held; undefined: it had not said.
  beyond(slot) {
    const place = this.nvmlSlots.findLastIndex(its => its <= slot);
    return place < 0 || this.nvml[place] < 0 ? undefined : this.nvml[place];
  }

  // The text beside the picture: a column.
  read(column) {
    const row = (mark, name, bytes, more, kind = "") => make("div", {class: kind}, mark,
      make("span", {}, name, ...more ? [make("small", {title: more}, more)] : []),
      make("span", {class: "n", style: "flex:none"}, size(bytes)));
    const total = this.columns[column], away = data.away[column];
    const held = Math.max(total, data.reserved[column]);
    const beyond = this.beyond(data.slots[column]);
    const others = this.lanes && beyond === undefined ?
      this.lanes.others(data.slots[column]) : undefined;
    const free = this.lanes ? this.lanes.free(data.slots[column]) : undefined;
    const words = column === this.peak ? ", the peak" : "";
    if (this.lanes)
      this.lanes.read(data.slots[column]);
    const largest = layer => (layer.all || []).reduce((x, y) =>
      y.held[column] > x.held[column] ? y : x, layer.all ? layer.all[0] : null);
    const rows = this.layers().filter(layer => layer.of(column)).map(layer => {
      const best = largest(layer);
      return [layer.of(column), row(dot(layer.owner), layer.name, layer.of(column),
        best ? `${best.name}, ${size(best.held[column])}` : layer.where)];
    });
    rows.sort((m, n) => n[0] - m[0]);
    find(".reading").replaceChildren(make("span", {}, "at ", make("b", {}, time(data.at[column])),
      words), row(make("i", {class: "dot", style: "background:var(--idle)"}), "idle",
      Math.min(held - total, held - away), "held, not in use"),
    ...rows.slice(0, 9).map(each => each[1]),
    ...away ? [row(make("i", {class: "dot away"}), "parked", away, "on the host")] : [],
    ...beyond === undefined ? [] : [row(make("i", {class: "dot context"}),
      "CUDA context, modules", beyond, "by NVML, less what is held")],
    ...others === undefined ? [] : [row(make("i", {class: "dot context"}), "all else on the GPU",
      others, "CUDA contexts, code, other processes")],
    row("", "live, as asked for", total, "", "sum"),
    row("", "held on the device", held - away, ""),
    ...beyond === undefined ? [] : [row("", "nvidia-smi shows", held - away + beyond, "")],
    ...free === undefined ? [] : [row("", "free on the GPU", free, "")]);
  }

  showTable(layers) {
    const shown = [...layers].sort((m, n) => n.of(this.peak) - m.of(this.peak))
      .slice(0, this.by === "owner" ? 6 : 4);
    const cell = words => make("td", {class: "n"}, words);
    const head = ["time", "live", "held", ...shown.map(layer => layer.name)].map(words =>
      make("th", {scope: "col", class: "n"}, words));
    const rows = this.bins(TABLE_ROWS).map(([, , i]) => i).filter((i, k, all) => i !== all[k - 1])
      .map(i => make("tr", {}, cell(time(data.at[i])), cell(size(this.columns[i])),
        cell(size(Math.max(data.reserved[i], this.columns[i]) - data.away[i])),
        ...shown.map(layer => cell(layer.of(i) ? size(layer.of(i)) : "–"))));
    const marks = data.marks.map(([ns, , words]) => make("tr", {}, cell(time(ns)),
      make("td", {}, words)));
    const happened = marks.length ? [make("table", {}, make("thead", {}, make("tr", {},
      make("th", {scope: "col", class: "n"}, "time"), make("th", {scope: "col"}, "what happened"))),
    make("tbody", {}, ...marks))] : [];
    find("#as-table").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows)), ...happened);
  }

  start() {
    this.svg.addEventListener("pointerdown", event => this.zoom(event));
    this.svg.addEventListener("dblclick", () => this.show(0, this.num));
    this.svg.addEventListener("pointermove", event => this.read(this.columnOf[this.slot(event)]));
    this.svg.addEventListener("pointerleave", () => this.read(this.peak));
    find("#all").addEventListener("click", () => this.show(0, this.num));
    const table = find("#table-key");
    table.addEventListener("click", () => {
      find("#as-table").hidden = !find("#as-table").hidden;
      table.setAttribute("aria-pressed", !find("#as-table").hidden);
      this.draw();
    });
    const ways = document.querySelectorAll("#timeline [data-by]");
    ways.forEach(its => its.addEventListener("click", () => {
      this.by = its.dataset.by;
      ways.forEach(each => each.setAttribute("aria-pressed", each === its));
      find("#by").textContent = this.by === "site" ? "call site" : "library";
      this.draw();
      this.read(this.peak);
    }));
    new ResizeObserver(() => find(".picture").clientWidth !== this.width && this.draw())
      .observe(find(".picture"));
    this.draw();
    this.read(this.peak);
  }
}
