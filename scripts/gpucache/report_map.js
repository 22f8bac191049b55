// SPDX-License-Identifier: BSD-2-Clause
// The block map: device memory at a moment, as cells in the order of addresses.
"use strict";

const CELL = 9, CELL_GAP = 1, SHADES = 4;

class BlockMap {
  constructor() {
    this.canvas = find("#map canvas");
    this.now = Math.max(0, data.maps.findIndex(its => its.name.startsWith("the peak")));
    this.buttons = data.maps.map((its, i) => {
      const button = make("button", {type: "button", class: "chip"}, its.name);
      button.addEventListener("click", () => {
        this.now = i;
        this.draw();
      });
      return button;
    });
    find("#map .keys").replaceChildren(...this.buttons);
    new ResizeObserver(() => this.canvas.clientWidth !== this.width && this.draw())
      .observe(this.canvas);
    addEventListener("theme", () => this.draw());
    this.draw();
  }

  draw() {
    const its = data.maps[this.now], step = CELL + CELL_GAP;
    this.width = this.canvas.clientWidth;
    const columns = Math.max(1, Math.floor(this.width / step));
    const number = its.cells.reduce((sum, [count]) => sum + count, 0);
    const height = Math.ceil(number / columns) * step, scale = devicePixelRatio || 1;
    this.canvas.width = this.width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const area = this.canvas.getContext("2d");
    // A style's variable may be light-dark(): an element says what it comes to.
    const probe = make("i");
    document.body.append(probe);
    const paint = name => {
      probe.style.color = name;
      return getComputedStyle(probe).color;
    };
    const idle = paint("var(--idle)"), paints = data.owners.map((_, i) => paint(colour(i)));
    probe.remove();
    area.scale(scale, scale);
    let at = 0;
    for (const [count, owner, shade] of its.cells)
      for (let i = 0; i < count; i++, at++) {
        const place = [at % columns * step, Math.floor(at / columns) * step, CELL, CELL];
        area.globalAlpha = 1;
        area.fillStyle = idle;
        area.fillRect(...place);
        area.globalAlpha = owner < 0 ? 0 : (shade + 1) / (SHADES + 1);
        area.fillStyle = owner < 0 ? idle : paints[owner];
        area.fillRect(...place);
      }
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === this.now));
    const shown = [...new Set(its.cells.map(([, owner]) => owner))].filter(owner => owner >= 0);
    const words = `${its.name}: ${number} cells of ${size(its.cell)}`;
    this.canvas.setAttribute("aria-label", `${words}; the table above has its figures`);
    find("#map p").replaceChildren(make("span", {}, words),
      ...shown.sort((x, y) => x - y).map(owner => make("span", {}, dot(owner),
        data.owners[owner])),
      make("span", {}, make("i", {class: "dot", style: "background:var(--idle)"}),
        "no live block"));
  }
}

function startMap() {
  new BlockMap();
}
