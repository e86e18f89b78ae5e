// Elements, numbers and colours. Text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  return filled(made, attributes, children);
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  return filled(made, attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children); // strings become text nodes
  return made;
}

/** Formats milliseconds with a suitable unit; "-" if unknown. */
function time(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "-";
  const size = Math.abs(ms);
  if (size >= 1000) return `${digits(ms / 1000)} s`;
  if (size >= 1 || ms === 0) return `${digits(ms)} ms`;
  return `${digits(ms * 1000)} µs`;
}

/** Formats three significant digits, or all before the decimal point. */
function digits(value) {
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

function percent(share) {
  if (share === null) return '-';
  return `${(share * 100).toFixed(1)} %`;
}

function megabytes(bytes) {
  return `${digits(bytes / 1e6)} MB`;
}

/** Returns the value of a custom property of the page's style, in the current theme. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns a formatter of milliseconds for ticks `step` apart: one unit, and enough digits to distinguish ticks. */
function tickTexts(step, highest) {
  const [unit, name] = highest >= 1000 ? [1000, "s"] : highest >= 1 ? [1, "ms"] : [0.001, "µs"];
  const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return (ms) => `${(ms / unit).toFixed(Math.min(places, 9))} ${name}`;
}

/** Calls back at once, and whenever the element's width, the theme or the medium changes. */
function redrawn(container, draw) {
  let width = -1;
  const whenWider = () => {
    if (container.clientWidth !== width) {
      width = container.clientWidth;
      draw(width);
    }
  };
  new ResizeObserver(whenWider).observe(container);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => draw(container.clientWidth));
  }
  whenWider();
}

// Tooltip of the object under the pointer, or selected by keyboard; screen readers read it out.

const tooltip = document.getElementById("tooltip");

/** Shows lines of text at a place of the window; the first line is the title. */
function showTooltip(lines, x, y) {
  tooltip.replaceChildren(
    ...lines.map((line, i) => element(i ? "div" : "strong", {}, line)),
  );
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = Math.min(x + 12, innerWidth - box.width - 8);
  const above = y + 16 + box.height > innerHeight;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${Math.max(8, above ? y - box.height - 12 : y + 16)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

/** Shows the result of `lines()` while the element has the focus or the pointer is over it. */
function explain(target, lines) {
  target.addEventListener("pointermove", (event) => {
    showTooltip(lines(), event.clientX, event.clientY);
  });
  target.addEventListener("pointerleave", hideTooltip);
  target.addEventListener("focus", () => {
    const box = target.getBoundingClientRect();
    showTooltip(lines(), box.left + 24, box.bottom - 12);
  });
  target.addEventListener("blur", hideTooltip);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});
