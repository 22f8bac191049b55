// SPDX-License-Identifier: BSD-2-Clause
// The picture of memory over time. A slot is the time of a column, and a place is a number of slots
// with a part of one. Near the peak there are finer columns, for the picture when it is zoomed in.
// Each bin of the picture shows its highest column, whole, so that sums stay true.
"use strict";

const HEIGHT = 340, LEFT = 66, RIGHT = 8, TOP = 74, BOTTOM = 24, FLAG_ROWS = 3;
const FLAG_LETTERS = 44, LABEL_LETTERS = 7, TABLE_ROWS = 200, LEAST_NS = 100, CLOSER = 10;

class Timeline {
  // moved: called when A or B is another column.
  constructor(moved) {
    this.moved = moved;
    this.columns = data.at.map((_, i) => data.series.reduce((sum, its) => sum + its.held[i], 0));
    this.num = data.slots[data.slots.length - 1] + 1;
    this.num = Math.max(this.num, Math.ceil(data.span / data.width));
    this.coarse = {starts: data.slots, columns: data.slots.map((_, i) => i)};
    this.near = this.withNear();
    Object.assign(this, {by: "owner", lo: 0, hi: this.num, a: data.a, b: data.b, peak: data.peak,
      told: [data.peak]});
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

  place(event) {
    const box = this.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
    return Math.max(this.lo, Math.min(this.hi, this.lo + part * (this.hi - this.lo)));
  }

  // The columns of all, with the finer ones where they are.
  withNear() {
    const found = [], [starts, columns] = [[], []];
    const ends = data.near.map(its => [data.starts[its.first], its.end / data.width]);
    const add = (start, column) => found.push([start, column]);
    data.slots.forEach((slot, i) => ends.some(([from, to]) => slot >= from && slot < to) ||
      add(slot, i));
    ends.forEach(([, to]) => add(to, this.indexOf(data.slots, to)));
    for (let i = data.slots.length; i < data.starts.length; i++)
      add(data.starts[i], i);
    for (const [start, column] of found.sort((x, y) => x[0] - y[0])) {
      starts.push(start);
      columns.push(column);
    }
    return {starts, columns};
  }

  // The columns of the picture: finer ones only where a coarse one is wider than a pixel.
  level() {
    const wide = this.hi - this.lo < Math.min(this.num, this.width - LEFT - RIGHT);
    return data.near.length && wide ? this.near : this.coarse;
  }

  // The last of these that is not behind the place.
  indexOf(starts, place) {
    let [low, high] = [0, starts.length];
    while (low + 1 < high) {
      const middle = low + high >> 1;
      if (starts[middle] <= place)
        low = middle;
      else
        high = middle;
    }
    return low;
  }

  columnAt(place) {
    const {starts, columns} = this.level();
    return columns[this.indexOf(starts, place)];
  }

  y(bytes) {
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * bytes / this.top;
  }

  // [first place, place behind it, column] of each bin.
  bins(most) {
    const {starts, columns} = this.level(), found = [], span = this.hi - this.lo;
    const step = columns === this.near.columns ? span / most : Math.max(1, span / most);
    const height = i => this.columns[i] + data.reserved[i] / 2 ** 50;
    let place = this.indexOf(starts, this.lo);
    for (let n = 0; n * step < span - step * 1e-6; n++) {
      const from = this.lo + n * step, to = Math.min(this.hi, from + step);
      while (place + 1 < starts.length && starts[place + 1] <= from)
        place++;
      let best = columns[place];
      for (let i = place + 1; i < starts.length && starts[i] < to - step * 1e-6; i++)
        if (height(columns[i]) > height(best))
          best = columns[i];
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
    find("#closer").hidden = !data.near.length ||
      (this.hi - this.lo) * data.width < 1.01 * LEAST_NS;
    if (!find("#as-table").hidden)
      this.showTable(layers);
    const [column, place] = this.told;  // a column of another level may be there now
    this.read(place === undefined ? column : this.columnAt(place), place);
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
    const first = Math.ceil(this.lo * data.width / every);
    const digits = Math.max(0, -Math.floor(Math.log10(every / unit) + 1e-6));
    const number = n => `${+(n * every / unit).toFixed(digits)}`;
    const isLong = number(first + 1).length > LABEL_LETTERS;  // the others are told from the first
    for (let n = first; n * every < this.hi * data.width; n++) {
      const x = this.x(n * every / data.width);
      const words = !isLong ? `${number(n)} ${name}` : n > first ? `+${number(n - first)} ${name}` :
        time(n * every, every / 10);
      found.push(make("line", {class: "grid", x1: x, x2: x, y1: TOP - 14, y2: HEIGHT - BOTTOM}),
        make("text", {x, y: HEIGHT - 6, "text-anchor": "middle"}, words));
    }
    return found;
  }

  // Lines of what happened, one a pixel and kind; words where there is room for them. The peak and
  // failures come first.
  flags() {
    const rows = Array.from({length: FLAG_ROWS}, () => []), lines = [], all = [], seen = new Set();
    const rank = kind => ["oom", "peak"].indexOf(kind);
    const marks = [...data.marks, [data.at[this.peak], "peak", `peak: ${size(this.columns[
      this.peak])} live`]].sort((m, n) => rank(n[1]) - rank(m[1]) || m[0] - n[0]);
    for (const [ns, kind, what] of marks) {
      const words = what.length > FLAG_LETTERS ? `${what.slice(0, FLAG_LETTERS - 1)}…` : what;
      const x = this.x(ns / data.width), place = `${Math.round(x)} ${kind}`;
      if (x < LEFT || x > this.width - RIGHT || seen.has(place))
        continue;
      seen.add(place);
      const wide = 7 * words.length + 10, left = x + wide > this.width;
      const [from, to] = left ? [x - wide, x] : [x, x + wide];
      const row = rows.findIndex(its => its.every(([l, r]) => r <= from || to <= l));
      const y = 34 + 16 * Math.max(0, row);
      const its = name => make("g", {class: kind}, name, make("title", {}, `${time(ns)}: ${what}`));
      lines.push(its(make("line", {class: "flag", x1: x, x2: x, y1: row < 0 ? TOP - 2 : y - 10,
        y2: HEIGHT - BOTTOM})));
      if (row < 0)
        continue;
      all.push(its(make("text", {class: "words", x: left ? x - 5 : x + 5, y,
        "text-anchor": left ? "end" : "start"}, words)));
      rows[row].push([from, to]);
    }
    return [...lines, ...all];  // no line crosses words
  }

  drawMarkers() {
    const held = this.over.contains(document.activeElement) &&
      document.activeElement.dataset.name;
    const place = column => this.level() === this.near || column >= data.slots.length ?
      data.at[column] / data.width : data.slots[column] + .5;
    const inside = column => Math.max(LEFT, Math.min(this.width - RIGHT, this.x(place(column))));
    const [l, r] = [inside(this.a), inside(this.b)].sort((m, n) => m - n);
    const all = [make("rect", {class: "between", x: l, y: 20, width: r - l,
      height: HEIGHT - BOTTOM - 20})];
    for (const name of ["a", "b"]) {
      const x = inside(this[name]);
      const its = make("g", {class: "marker", tabindex: 0, role: "slider", "data-name": name,
        "aria-label": `marker ${name.toUpperCase()}`, "aria-valuemin": 0,
        "aria-valuemax": this.num - 1, "aria-valuenow": data.starts[this[name]], "aria-valuetext":
          `${when(this[name])}, ${size(this.columns[this[name]])} live`},
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

  move(name, column) {
    this[name] = column;
    this.drawMarkers();
    this.read(column);
    this.moved();
  }

  key(event, name) {
    const way = {ArrowLeft: -1, ArrowRight: 1}[event.key], {starts, columns} = this.level();
    if (!way)
      return;
    event.preventDefault();
    const now = columns.indexOf(this[name]);
    const at = columns === this.near.columns ? data.at[this[name]] / data.width :
      data.starts[this[name]];
    const place = (now < 0 ? this.indexOf(starts, at) : now) + way * (event.shiftKey ? 10 : 1);
    this.move(name, columns[Math.max(0, Math.min(columns.length - 1, place))]);
  }

  take(event, name) {
    event.preventDefault();
    event.stopPropagation();
    find(`[data-name=${name}]`, this.over).focus();
    this.drag(event, now => this.move(name, this.columnAt(this.place(now))));
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
    const first = this.place(event), start = event.clientX;
    const box = make("rect", {class: "chosen", y: TOP - 14, height: HEIGHT - BOTTOM - TOP + 14});
    this.svg.append(box);
    this.drag(event, now => {
      const ends = [this.x(first), this.x(this.place(now))].sort((m, n) => m - n);
      box.setAttribute("x", ends[0]);
      box.setAttribute("width", ends[1] - ends[0]);
    }, last => {
      box.remove();
      if (Math.abs(last.clientX - start) > 5)
        this.show(...[first, this.place(last)].sort((m, n) => m - n));
    });
  }

  // Shows the peak, and a part of the time that is shown around it.
  closer() {
    const place = data.at[this.peak] / data.width, half = (this.hi - this.lo) / CLOSER / 2;
    this.show(place - half, place + half);
  }

  // Whole slots, and no fewer than four, but where there are finer columns.
  show(lo, hi) {
    const near = data.near.some(its => data.starts[its.first] < hi && its.end / data.width > lo);
    const least = near ? LEAST_NS / data.width : 4;
    if (!near)
      [lo, hi] = [Math.floor(lo), Math.ceil(hi)];
    hi = Math.min(this.num, Math.max(hi, lo + least));
    Object.assign(this, {lo: Math.max(0, Math.min(lo, hi - least)), hi});
    this.draw();
  }

  // What NVML said that the process had beyond what it held; undefined: it had not said.
  beyond(place) {
    const i = this.nvmlSlots.findLastIndex(its => its <= place);
    return i < 0 || this.nvml[i] < 0 ? undefined : this.nvml[i];
  }

  // The text beside the picture, and the lanes' figures: a column, and the place of its highest
  // moment or, if it is given, that of the pointer.
  read(column, pointer) {
    this.told = [column, pointer];
    const place = pointer === undefined ? data.at[column] / data.width : pointer;
    const row = (mark, name, bytes, more, kind = "") => make("div", {class: kind}, mark,
      make("span", {}, name, ...more ? [make("small", {title: more}, more)] : []),
      make("span", {class: "n", style: "flex:none"}, size(bytes)));
    const total = this.columns[column], away = data.away[column];
    const held = Math.max(total, data.reserved[column]);
    const beyond = this.beyond(place);
    const others = this.lanes && beyond === undefined ? this.lanes.others(place) : undefined;
    const free = this.lanes ? this.lanes.free(place) : undefined;
    const words = data.at[column] === data.at[this.peak] ? ", the peak" : "";
    if (this.lanes)
      this.lanes.read(place);
    const largest = layer => (layer.all || []).reduce((x, y) =>
      y.held[column] > x.held[column] ? y : x, layer.all ? layer.all[0] : null);
    const rows = this.layers().filter(layer => layer.of(column)).map(layer => {
      const best = largest(layer);
      return [layer.of(column), row(dot(layer.owner), layer.name, layer.of(column),
        best ? `${best.name}, ${size(best.held[column])}` : layer.where)];
    });
    rows.sort((m, n) => n[0] - m[0]);
    find(".reading").replaceChildren(make("span", {}, "at ", make("b", {}, when(column)),
      words), row(make("i", {class: "dot", style: "background:var(--idle)"}), "idle",
      Math.max(0, held - away - (total - data.away_live[column])), "held, not in use"),
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
      .map(i => make("tr", {}, cell(when(i)), cell(size(this.columns[i])),
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
    this.svg.addEventListener("pointermove", event => {
      const place = this.place(event);
      this.read(this.columnAt(place), place);
    });
    this.svg.addEventListener("pointerleave", () => this.read(this.peak));
    find("#all").addEventListener("click", () => this.show(0, this.num));
    find("#closer").addEventListener("click", () => this.closer());
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
      this.told = [this.peak];
      this.draw();
    }));
    new ResizeObserver(() => find(".picture").clientWidth !== this.width && this.draw())
      .observe(find(".picture"));
    this.draw();
  }
}
