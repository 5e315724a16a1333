// Strip charts of the last two minutes: one quantity each, newest on the right, outages shaded.

const SAMPLES = 120;
const NAMESPACE = "http://www.w3.org/2000/svg";

export class StripChart {
  #values = [];
  #outages = [];

  constructor(title, format) {
    this.format = format;
    this.element = document.createElement("figure");
    this.element.className = "chart";
    const caption = document.createElement("figcaption");
    caption.append(title, (this.value = document.createElement("b")));
    this.value.textContent = "–";
    this.svg = document.createElementNS(NAMESPACE, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${SAMPLES} 30`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true"); // the caption says the same in words
    this.element.append(caption, this.svg);
  }

  /** Adds a sample; null is a gap. */
  add(value, isOut) {
    this.#values = [...this.#values, value].slice(-SAMPLES);
    this.#outages = [...this.#outages, isOut].slice(-SAMPLES);
    this.value.textContent = value === null ? "–" : this.format(value);
    this.#draw();
  }

  #draw() {
    const top = Math.max(...this.#values.map((value) => value ?? 0), 1e-9) * 1.1;
    const first = SAMPLES - this.#values.length;
    let line = "", pen = "M";
    this.#values.forEach((value, i) => {
      if (value !== null) line += `${pen}${first + i + 0.5} ${30 - (30 * value) / top}`;
      pen = value === null ? "M" : "L";
    });
    const path = drawn("path", { d: line });
    const shades = this.#outages.flatMap((out, i) => (out ? [drawn("rect", { x: first + i, y: 0, width: 1, height: 30 })] : []));
    this.svg.replaceChildren(...shades, path);
  }
}

function drawn(name, attributes) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}
