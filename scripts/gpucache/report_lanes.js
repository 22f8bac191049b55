// SPDX-License-Identifier: BSD-2-Clause
// The lanes below the picture: what each of several processes held of the GPU, their sum, and what
// else was not free, on the picture's axis of time. A process with a trace has finer steps near its
// own peak and failures, for the picture where that has finer columns.
"use strict";

const LANE_HEIGHT = 46, LANE_GAP = 20, SUM_HEIGHT = 84;

class Lanes {
  constructor(line) {
    this.line = line;
    this.svg = find("#lanes");
    this.lanes = data.lanes.map((its, number) => {
      const [starts, held, live] = [its.slots, its.held, its.live || []].map(sums);
      const coarse = {starts, held, live}, fine = this.withNear(coarse, its);
      return {name: its.name, number, hasLive: Boolean(its.live), coarse, fine,
        most: held.reduce((x, y) => Math.max(x, y), 1), marks: its.marks || []};
    });
    const rest = sums(data.rest), starts = sums(data.rest_slots);
    this.rest = {coarse: {starts, held: rest}, fine: {starts, held: rest}};
    this.restBegins = rest.length ? starts[0] : Infinity;
    this.mostRest = rest.reduce((x, y) => Math.max(x, y), 0);
    this.shown = this.lanes.length > 1 ? this.lanes : [];
    const rows = this.shown.length * (LANE_HEIGHT + LANE_GAP) + SUM_HEIGHT + LANE_GAP;
    this.svg.setAttribute("height", rows);
    this.svg.setAttribute("aria-label", `${data.gpu}: at most ${size(data.most)} of ` +
      `${size(data.capacity)} held, at ${time(data.most_slot * data.width)}; ` +
      this.lanes.map(its => [`${its.name} at most ${size(its.most)}`,
        ...its.marks.map(([ns, , words]) => `${words} at ${time(ns)}`)].join(", ")).join("; ") +
      (this.mostRest ? `; others at most ${size(this.mostRest)}` : ""));
  }

  // The steps with finer ones where they are, and none of the process before its trace begins. From
  // the end of the trace on it has what it had then or, if it has left, nothing.
  withNear(coarse, its) {
    if (!its.near)
      return coarse;
    const parts = its.near.map(part => ({starts: sums(part.starts).map(ns => ns / data.width),
      held: sums(part.held), live: sums(part.live), end: part.end / data.width}));
    const begin = its.begin / data.width, end = its.end / data.width;
    const rows = [], row = (from, i, start) => start < end &&
      rows.push([start, from.held[i], from.live[i]]);
    coarse.starts.forEach((slot, i) => {
      const start = slot === Math.floor(begin) ? begin : slot;
      if (!parts.some(part => start >= part.starts[0] && start < part.end))
        row(coarse, i, start);
    });
    for (const part of parts) {
      part.starts.forEach((start, i) => row(part, i, start));
      row(coarse, this.line.indexOf(coarse.starts, part.end), part.end);
    }
    rows.sort((x, y) => x[0] - y[0]);
    rows.push([end, ...its.behind]);
    const [starts, held, live] = [0, 1, 2].map(i => rows.map(each => each[i]));
    return {starts, held, live};
  }

  // The number of the step at a place, and the steps; -1: there was none yet.
  find(its, place) {
    const steps = this.line.level() === this.line.near ? its.fine : its.coarse;
    const i = this.line.indexOf(steps.starts, place);
    return [steps.starts[i] <= place ? i : -1, steps];
  }

  // held or live.
  value(its, name, place) {
    const [i, steps] = this.find(its, place);
    return i < 0 ? 0 : steps[name][i];
  }

  sum(place) {
    return this.lanes.reduce((all, its) => all + this.value(its, "held", place), 0);
  }

  // What was not free beside the lanes, and what was free; undefined: nobody had told.
  others(place) {
    return place < this.restBegins ? undefined : this.value(this.rest, "held", place);
  }

  free(place) {
    return place < this.restBegins ? undefined :
      Math.max(0, data.capacity - this.sum(place) - this.others(place));
  }

  // The highest of each bin.
  most(its, name) {
    return this.bins.map(([from, to]) => {
      let [i, steps] = this.find(its, from), best = i < 0 ? 0 : steps[name][i];
      const end = steps === its.fine ? to - (to - from) * 1e-6 : Math.floor(to + 1e-6);
      while (++i < steps.starts.length && steps.starts[i] < end)
        best = Math.max(best, steps[name][i]);
      return best;
    });
  }

  // A step line over the bins, down to the values of `below`.
  area(values, below, top, height, most, attributes) {
    const y = bytes => (top + height - height * bytes / most).toFixed(1);
    const ends = this.bins.map(([from, to]) => [this.line.x(from).toFixed(1),
      this.line.x(to).toFixed(1)]);
    const up = ends.map(([l, r], k) => `${l} ${y(values[k])}H${r}`);
    const down = ends.map(([l, r], k) => `${r} ${y(below[k])}H${l}`).reverse();
    return make("path", {d: `M${up.join("L")}L${down.join("L")}Z`, ...attributes});
  }

  // What happened to a process, as lines; the words come with the pointer.
  flags(marks, top) {
    const inside = x => x >= LEFT && x <= this.line.width - RIGHT;
    return marks.map(([ns, kind, words]) => [this.line.x(ns / data.width), kind,
      `${time(ns)}: ${words}`]).filter(([x]) => inside(x)).map(([x, kind, words]) =>
      make("g", {class: kind}, make("line", {class: "flag", x1: x, x2: x, y1: top,
        y2: top + LANE_HEIGHT}), make("title", {}, words)));
  }

  draw() {
    const line = this.line, right = line.width - RIGHT;
    this.svg.setAttribute("viewBox", `0 0 ${line.width} ${this.svg.getAttribute("height")}`);
    this.bins = line.bins(line.width - LEFT - RIGHT);
    const none = this.bins.map(() => 0), found = [], held = [];
    this.words = [];
    const label = (y, name, most) => {
      const words = make("text", {x: right, y, "text-anchor": "end"});
      this.words.push(words);
      found.push(make("text", {x: LEFT, y, class: "name"}, name), words,
        make("text", {x: LEFT - 8, y: y + 14, "text-anchor": "end"}, size(most)));
    };
    let top = LANE_GAP;
    const fill = number => `fill:var(--c${number % 8})`;
    for (const its of this.lanes)
      held.push(this.most(its, "held"));
    for (const its of this.shown) {
      const live = its.hasLive && this.most(its, "live");
      label(top - 5, its.name, its.most);
      found.push(
        this.area(held[its.number], none, top, LANE_HEIGHT, its.most,
          {style: live ? "fill:var(--idle)" : fill(its.number)}),
        ...live ? [this.area(live, none, top, LANE_HEIGHT, its.most, {style: fill(its.number)})] :
          [], ...this.flags(its.marks, top));
      top += LANE_HEIGHT + LANE_GAP;
    }
    const most = Math.max(data.capacity, data.most + this.mostRest);
    label(top - 5, this.shown.length ? `${data.gpu}, all together` : data.gpu, most);
    let below = none;
    for (const its of this.lanes) {
      const above = below.map((bytes, k) => bytes + held[its.number][k]);
      found.push(this.area(above, below, top, SUM_HEIGHT, most, {style: fill(its.number)}));
      below = above;
    }
    const above = this.most(this.rest, "held").map((bytes, k) => bytes + below[k]);
    if (this.mostRest)
      found.push(this.area(above, below, top, SUM_HEIGHT, most, {class: "rest",
        style: "fill:var(--c8)"}));
    const y = top + SUM_HEIGHT * (1 - data.capacity / most);
    found.push(make("line", {class: "capacity", x1: LEFT, x2: right, y1: y, y2: y},
      make("title", {}, `capacity: ${size(data.capacity)}`)));
    this.svg.replaceChildren(...found);
  }

  // The figures of a moment, at the right of what is drawn.
  read(place) {
    const [held, live] = ["held", "live"].map(name => its => size(this.value(its, name, place)));
    const at = this.line.level() === this.line.near ? place : Math.floor(place);
    const values = this.shown.map(its => its.hasLive ? `${live(its)} live, ${held(its)} held` :
      `${held(its)} by NVML`);
    const rest = this.value(this.rest, "held", place);
    values.push(`${size(this.sum(place))} ${rest > 0 ? `and ${size(rest)} of others ` : ""}of ` +
      `${size(data.capacity)} at ${time(at * data.width)}`);
    values.forEach((value, i) => this.words[i].textContent = value);
  }
}
