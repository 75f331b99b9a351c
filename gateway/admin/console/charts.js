// Lines over the last ten minutes, as SVG. Steps come from the gateway by number, so that those of before a
// restart, or of before the connection was lost, stay where they are.

import { Keyed, attribute, element, text } from "./elements.js";
import { clock } from "./words.js";

const STEPS = 120;
const HEIGHT = 150;
const WIDTH = 600; // of the drawing; it is stretched to the place it gets
const SVG = "http://www.w3.org/2000/svg";

/** The steps that are known, by number. */
export class Steps {
  constructor() {
    this.byNumber = new Map();
    this.seconds = 5;
    this.last = 0;
  }

  take({ at, step_seconds: seconds, steps }) {
    this.seconds = seconds;
    this.last = Math.floor(at / seconds) - 1; // the one of now is not over
    for (const step of steps) this.byNumber.set(step.number, step);
    for (const number of this.byNumber.keys()) if (number <= this.last - STEPS) this.byNumber.delete(number);
  }

  /** One value for each step, oldest first; null where `value` finds none. */
  values(value) {
    return Array.from({ length: STEPS }, (_, place) => {
      const step = this.byNumber.get(this.last - STEPS + 1 + place);
      return step === undefined ? null : value(step);
    });
  }

  /** When the step at this place began, in seconds since 1970. */
  at(place) {
    return (this.last - STEPS + 1 + place) * this.seconds;
  }
}

/** A chart of some lines; `unit` words a value. */
export class Chart {
  constructor(parent, unit) {
    this.unit = unit;
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.grid = svg("path", { class: "grid" });
    this.cursor = svg("path", { class: "cursor" });
    const group = svg("g", {});
    this.svg.append(this.grid, group, this.cursor);
    this.marks = element("div", "marks");
    this.legend = element("p", "legend");
    this.keys = new Keyed(this.legend, (line) => new Key(line));
    this.lines = new Keyed(group, (line) => new Line(line));
    this.place = null;
    const field = element("div", "field", this.svg, this.marks);
    parent.append(field, element("p", "times", element("span", "", "10 min ago"), element("span", "", "now")), this.legend);
    field.addEventListener("pointermove", (event) => {
      const { left, width } = field.getBoundingClientRect();
      this.point(Math.round(((event.clientX - left) / width) * (STEPS - 1)));
    });
    field.addEventListener("pointerleave", () => this.point(null));
  }

  /** Lines as `{name, className, values}`, steps for their times. */
  show(lines, steps) {
    this.shown = lines;
    this.steps = steps;
    const top = Math.max(0, ...lines.flatMap((line) => line.values.filter((value) => value !== null)));
    const marks = ticks(top);
    this.height = marks.at(-1);
    const y = (value) => HEIGHT - (value / this.height) * (HEIGHT - 4) - 2;
    attribute(this.grid, "d", marks.map((mark) => `M0 ${y(mark).toFixed(1)}H${WIDTH}`).join(""));
    this.lines.show(lines.map((line) => ({ ...line, y })), (line) => line.name);
    if (this.marks.dataset.of !== marks.join()) {
      this.marks.dataset.of = marks.join();
      this.marks.replaceChildren(...marks.map((mark) => {
        const label = element("span", "mark", mark ? this.unit(mark) : "0");
        label.style.bottom = `${(mark / this.height) * 100}%`;
        return label;
      }));
    }
    const last = lines.map(({ name, values }) => `${name} ${this.words(values.findLast((value) => value !== null))}`);
    attribute(this.svg, "aria-label", `Last ten minutes. ${last.join(", ")}`);
    this.point(this.place);
  }

  /** Values at this place in words, or those of the end. */
  point(place) {
    this.place = place === null ? null : Math.max(0, Math.min(STEPS - 1, place));
    const at = this.place ?? STEPS - 1;
    const x = (at / (STEPS - 1)) * WIDTH;
    attribute(this.cursor, "d", this.place === null ? "" : `M${x.toFixed(1)} 0V${HEIGHT}`);
    const time = this.place === null ? [] : [{ name: clock(this.steps.at(at)), className: "time", words: "" }];
    const keys = this.shown.map((line) => ({ ...line, words: this.words(line.values[at]) }));
    this.keys.show([...keys, ...time], (line) => (line.className === "time" ? "" : line.name));
  }

  words(value) {
    return value === null || value === undefined ? "–" : this.unit(value);
  }
}

class Key {
  constructor({ className }) {
    this.name = element("span", "name");
    this.value = element("span", "value");
    this.node = element("span", "", element("span", `key ${className}`), this.name, this.value);
  }

  show({ name, words }) {
    text(this.name, name);
    text(this.value, words);
  }
}

class Line {
  constructor({ className }) {
    this.node = svg("path", { class: `line ${className}` });
  }

  show({ values, y }) {
    attribute(this.node, "d", path(values, y));
  }
}

/** A line through the values; where one is missing it breaks off, and a lonely one is a dot. */
function path(values, y) {
  let drawn = "";
  values.forEach((value, place) => {
    if (value === null) return;
    const x = ((place / (STEPS - 1)) * WIDTH).toFixed(1);
    const begins = place === 0 || values[place - 1] === null;
    drawn += `${begins ? "M" : "L"}${x} ${y(value).toFixed(1)}`;
    if (begins && (values[place + 1] ?? null) === null) drawn += "h0";
  });
  return drawn;
}

/** Three or four round marks from 0 to above `top`. */
function ticks(top) {
  if (top <= 0) return [0, 1];
  const rough = top / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, place) => place * step);
}

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
