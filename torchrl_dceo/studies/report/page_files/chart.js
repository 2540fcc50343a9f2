"use strict";
// A line chart: drawn as SVG at the width that there is, read by pointer, finger or arrow keys.

const SVG = "http://www.w3.org/2000/svg";

function draw(parent, name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function make(parent, name, properties = {}, text = null) {
  const element = Object.assign(document.createElement(name), properties);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

/** Round numbers over a range, about as many as asked for. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

/** 1200 as 1.2k; no more digits than a reader needs. */
function short(value) {
  const size = Math.abs(value);
  const trim = (number, digits) => String(Number(number.toFixed(digits)));
  if (size >= 1e6) return trim(value / 1e6, 2) + "M";
  if (size >= 1e3) return trim(value / 1e3, size >= 1e5 ? 0 : 1) + "k";
  if (size >= 100 || Number.isInteger(value)) return trim(value, 0);
  if (size >= 0.01 || size === 0) return size >= 10 ? trim(value, 1) : value.toFixed(2);
  return value.toPrecision(2);
}

/** A number to read beside others: small ones with two digits, also round ones. */
function exact(value) {
  return Math.abs(value) < 10 && Math.abs(value) >= 0.005 ? value.toFixed(2) : value === 0 ? "0.00" : short(value);
}

class LineChart {
  /**
   * @param {HTMLElement} figure what it is drawn into
   * The chart itself is given to show(): {
   *   label, grid, x: {label, low, high}, y: {label, low, high},
   *   lines: [{name, colour, dash, width, opacity, values, low, high, step, titled}],
   *   marks: [{x, text}], ticks: [{x, colour, text}], readout(index) -> {title, rows: [{name, colour, text}]} }
   */
  constructor(figure) {
    this.figure = figure;
    this.svg = draw(figure, "svg", { tabindex: 0, role: "img" });
    this.box = make(figure, "div", { className: "readout", hidden: true });
    this.box.setAttribute("aria-live", "polite");
    this.index = null;
    this.width = 0;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.read(null); });
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.chart && this.space() !== this.width) this.redraw(); }).observe(figure);
  }

  show(chart) {
    this.chart = chart;
    this.index = null;
    this.redraw();
  }

  space() { return Math.max(240, Math.round(this.figure.clientWidth - 16)); }

  redraw() {
    const { chart, svg } = this;
    this.width = this.space();
    this.height = Math.round(Math.min(430, Math.max(250, this.width * 0.46)));
    const titled = this.width >= 640 && chart.lines.some((line) => line.titled);
    this.edge = { left: 62, right: titled ? 128 : 14, top: 14, bottom: 44 };
    this.figure.classList.toggle("narrow", this.width < 560);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    svg.setAttribute("aria-label", `${chart.label}. Arrow keys read the values.`);
    this.axes();
    for (const line of chart.lines) this.band(line);
    for (const line of chart.lines) this.line(line);
    for (const tick of chart.ticks || []) this.tick(tick);
    if (titled) this.names();
    this.cursor = draw(svg, "g");
    this.read(this.index);
  }

  x(value) {
    const { low, high } = this.chart.x;
    return this.edge.left + ((value - low) / (high - low)) * (this.width - this.edge.left - this.edge.right);
  }

  y(value) {
    const { low, high } = this.chart.y;
    return this.height - this.edge.bottom - ((value - low) / (high - low)) * (this.height - this.edge.top - this.edge.bottom);
  }

  axes() {
    const { svg, chart, edge, width, height } = this;
    const right = width - edge.right, bottom = height - edge.bottom;
    for (const value of ticks(chart.y.low, chart.y.high, 5)) {
      draw(svg, "line", { class: "grid", x1: edge.left, x2: right, y1: this.y(value), y2: this.y(value) });
      draw(svg, "text", { x: edge.left - 8, y: this.y(value) + 4, "text-anchor": "end", class: "y-tick" }, short(value));
    }
    for (const value of ticks(chart.x.low, chart.x.high, Math.max(3, Math.round(width / 130)))) {
      draw(svg, "text", { x: this.x(value), y: bottom + 18, "text-anchor": "middle", class: "x-tick" }, short(value));
    }
    draw(svg, "line", { class: "base", x1: edge.left, x2: right, y1: bottom, y2: bottom });
    draw(svg, "text", { x: (edge.left + right) / 2, y: height - 8, "text-anchor": "middle" }, chart.x.label);
    draw(svg, "text", { transform: `translate(13 ${(edge.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "y-label" }, chart.y.label);
    for (const mark of chart.marks || []) {
      draw(svg, "line", { class: "mark", x1: this.x(mark.x), x2: this.x(mark.x), y1: edge.top, y2: bottom });
      draw(svg, "text", { x: this.x(mark.x) + 5, y: edge.top + 10 }, mark.text);
    }
  }

  /** Stretches of points without a hole, as [x, y] pairs in pixels; steps go on to the next place. */
  stretches(line, values) {
    const found = [];
    let open = null, height = null;
    this.chart.grid.forEach((place, i) => {
      if (values[i] === null) { open = null; return; }
      if (open === null) found.push((open = []));
      else if (line.step) open.push([this.x(place), height]);
      height = this.y(values[i]);
      open.push([this.x(place), height]);
    });
    return found;
  }

  line(line) {
    const path = this.stretches(line, line.values).map((points) => {
      const [first, ...rest] = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
      return `M${first}` + (rest.length ? `L${rest.join("L")}` : "h0.01");
    });
    draw(this.svg, "path", {
      class: "curve", d: path.join(""), "data-name": line.name, style: `--colour: ${line.colour}`,
      "stroke-width": line.width, "stroke-dasharray": line.dash, "stroke-opacity": line.opacity ?? 1,
    });
  }

  band(line) {
    if (!line.low) return;
    const uppers = this.stretches(line, line.high), lowers = this.stretches(line, line.low);
    const path = uppers.map((upper, i) => "M" + [...upper, ...lowers[i].reverse()].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") + "Z");
    draw(this.svg, "path", { class: "band", d: path.join(""), "data-name": line.name, style: `--colour: ${line.colour}` });
  }

  tick({ x, colour, text }) {
    const at = this.x(x), bottom = this.height - this.edge.bottom;
    const mark = draw(this.svg, "path", { class: "tick", d: `M${at} ${bottom - 9}l6 10h-12z`, style: `--colour: ${colour}` });
    draw(mark, "title", {}, text);
  }

  /** Names at the ends of lines, moved apart where they would cover each other. */
  names() {
    const ends = this.chart.lines.filter((line) => line.titled).map((line) => {
      const last = line.values.findLastIndex((value) => value !== null);
      return last < 0 ? null : { line, x: this.x(this.chart.grid[last]), y: this.y(line.values[last]) };
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    const gap = 15, bottom = this.height - this.edge.bottom;
    ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + gap); });
    let limit = bottom;
    for (const end of [...ends].reverse()) { end.y = Math.min(end.y, limit); limit = end.y - gap; }
    for (const { line, y } of ends) {
      const name = line.titled.length > 16 ? line.titled.slice(0, 15) + "…" : line.titled;
      draw(this.svg, "text", { class: "name", x: this.width - this.edge.right + 8, y: y + 4, "data-name": line.name, style: `--colour: ${line.colour}` }, name);
    }
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.width;
    let nearest = 0;
    this.chart.grid.forEach((place, i) => { if (Math.abs(this.x(place) - at) < Math.abs(this.x(this.chart.grid[nearest]) - at)) nearest = i; });
    this.read(nearest);
  }

  key(event) {
    const last = this.chart.grid.length - 1, now = this.index;
    const next = { ArrowRight: now === null ? 0 : Math.min(last, now + 1), ArrowLeft: now === null ? last : Math.max(0, now - 1), Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.read(next);
  }

  /** Shows the values at one place of the grid, or none. */
  read(index) {
    this.index = index;
    this.cursor.replaceChildren();
    this.box.hidden = index === null;
    if (index === null) return;
    const { chart, edge } = this;
    const at = this.x(chart.grid[index]);
    draw(this.cursor, "line", { class: "cursor", x1: at, x2: at, y1: edge.top, y2: this.height - edge.bottom });
    for (const line of chart.lines) {
      if (line.values[index] !== null) draw(this.cursor, "circle", { class: "point", cx: at, cy: this.y(line.values[index]), r: line.titled ? 4 : 2.5, style: `--colour: ${line.colour}` });
    }
    const { title, rows } = chart.readout(index);
    this.box.replaceChildren();
    make(this.box, "b", {}, title);
    for (const row of rows) {
      const entry = make(this.box, "div");
      make(entry, "span", { className: "swatch", style: `--colour: ${row.colour}` });
      make(entry, "span", {}, row.name);
      make(entry, "span", {}, row.text);
    }
    const left = at > this.width / 2 ? at - this.box.offsetWidth - 6 : at + 22;
    this.box.style.left = `${Math.max(8, left)}px`;
  }

  /** Lets one agent stand out; null ends it. */
  highlight(name) {
    for (const part of this.svg.querySelectorAll("[data-name]")) part.classList.toggle("dim", name !== null && part.dataset.name !== name);
  }
}
