// Strip charts of the last two minutes: one quantity each, newest on the right, outages shaded, the axes' ends told.

import { element } from "./elements.js";

const SAMPLES = 120; // one a second
const HEIGHT = 40;
const NAMESPACE = "http://www.w3.org/2000/svg";

export class StripChart {
  #samples = []; // {value, isOut}

  /** `format` writes a value with its unit. */
  constructor(title, format) {
    this.format = format;
    this.value = element("b", { textContent: "–" });
    this.top = element("span");
    this.svg = drawn("svg", { viewBox: `0 0 ${SAMPLES} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }); // the caption says the same in words
    this.element = element("figure", { className: "chart" }, [
      element("figcaption", {}, [title, this.value]),
      element("div", { className: "plot", ariaHidden: "true" }, [element("div", { className: "axis" }, [this.top, element("span", { textContent: "0" })]), this.svg]),
      element("div", { className: "times", ariaHidden: "true" }, [element("span", { textContent: "2 min ago" }), element("span", { textContent: "now" })]),
    ]);
  }

  /** Adds a sample; null is a gap. */
  add(value, isOut) {
    this.#samples = [...this.#samples, { value, isOut }].slice(-SAMPLES);
    this.value.textContent = value === null ? "–" : this.format(value);
    this.#draw();
  }

  #draw() {
    const top = roundedUp(Math.max(...this.#samples.map(({ value }) => value ?? 0)));
    this.top.textContent = top ? this.format(top) : "";
    const first = SAMPLES - this.#samples.length;
    let line = "", pen = "M";
    const shades = [];
    this.#samples.forEach(({ value, isOut }, i) => {
      if (value !== null && top) line += `${pen}${first + i + 0.5} ${HEIGHT - (HEIGHT * value) / top}`;
      pen = value === null ? "M" : "L";
      if (isOut) shades.push(drawn("rect", { x: first + i, y: 0, width: 1, height: HEIGHT }));
    });
    this.svg.replaceChildren(...shades, drawn("path", { d: line }));
  }
}

/** The axis' end: the next of 1, 2, 5, 10, ... that leaves some room above `value`. */
function roundedUp(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value * 1.05));
  return power * [1, 2, 5, 10].find((step) => step * power >= value * 1.05);
}

function drawn(name, attributes) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}
