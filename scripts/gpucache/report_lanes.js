// SPDX-License-Identifier: BSD-2-Clause
// The lanes below the picture: what each of several processes held of the GPU, their sum, and what
// else was not free, on the picture's axis of time.
"use strict";

const LANE_HEIGHT = 46, LANE_GAP = 20, SUM_HEIGHT = 84;

class Lanes {
  constructor(line) {
    this.line = line;
    this.svg = find("#lanes");
    this.lanes = data.lanes.map((its, number) => {
      const [slots, held, live] = [its.slots, its.held, its.live || []].map(sums);
      const at = list => this.steps(slots, list);
      return {name: its.name, number, held: at(held), live: its.live && at(live),
        most: held.reduce((x, y) => Math.max(x, y), 1), marks: its.marks || []};
    });
    const rest = sums(data.rest), restSlots = sums(data.rest_slots);
    this.rest = this.steps(restSlots, rest);
    this.restBegins = rest.length ? restSlots[0] : Infinity;
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

  // Of a slot the value in the list; 0: there was none yet.
  steps(slots, list) {
    const place = new Int32Array(this.line.num).fill(-1);
    for (let slot = 0, i = -1; slot < this.line.num; slot++) {
      while (i + 1 < slots.length && slots[i + 1] <= slot)
        i++;
      place[slot] = i;
    }
    return slot => place[slot] < 0 ? 0 : list[place[slot]];
  }

  sum(slot) {
    return this.lanes.reduce((all, its) => all + its.held(slot), 0);
  }

  // What was not free beside the lanes, and what was free; undefined: nobody had told.
  others(slot) {
    return slot < this.restBegins ? undefined : this.rest(slot);
  }

  free(slot) {
    return slot < this.restBegins ? undefined :
      Math.max(0, data.capacity - this.sum(slot) - this.rest(slot));
  }

  // The highest of a bin's slots.
  most(of, from, to) {
    let best = of(Math.floor(from));
    for (let slot = Math.floor(from) + 1; slot < Math.floor(to + 1e-6); slot++)
      best = Math.max(best, of(slot));
    return best;
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
      held.push(this.bins.map(([from, to]) => this.most(its.held, from, to)));
    for (const its of this.shown) {
      const live = its.live && this.bins.map(([from, to]) => this.most(its.live, from, to));
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
    const above = this.bins.map(([from, to], k) => below[k] + this.most(this.rest, from, to));
    if (this.mostRest)
      found.push(this.area(above, below, top, SUM_HEIGHT, most, {class: "rest",
        style: "fill:var(--c8)"}));
    const y = top + SUM_HEIGHT * (1 - data.capacity / most);
    found.push(make("line", {class: "capacity", x1: LEFT, x2: right, y1: y, y2: y},
      make("title", {}, `capacity: ${size(data.capacity)}`)));
    this.svg.replaceChildren(...found);
    this.read(this.slot === undefined ? data.slots[line.peak] : this.slot);
  }

  // The figures of a moment, at the right.
  read(slot) {
    this.slot = slot;
    if (!this.words)
      return;
    const values = this.shown.map(its => its.live ?
      `${size(its.live(slot))} live, ${size(its.held(slot))} held` :
      `${size(its.held(slot))} by NVML`);
    const rest = this.rest(slot);
    values.push(`${size(this.sum(slot))} ${rest > 0 ? `and ${size(rest)} of others ` : ""}of ` +
      `${size(data.capacity)} at ${time(slot * data.width)}`);
    values.forEach((value, i) => this.words[i].textContent = value);
  }
}
