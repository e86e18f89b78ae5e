// What is under the pointer, or selected by keyboard: beside it, and read out by screen readers.

const tooltip = document.getElementById("tooltip");

/** Lines of text at a place of the window; the first one is the title. */
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

/** Shows what `lines()` gives while the pointer is over the element, or it has the focus. */
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
