// The slowest rank's time of each step, with quartiles; choosing a step shows it in the timeline.

function drawStepTimes() {
  const picture = document.getElementById("steps-picture");
  if (!picture) return;
  const figure = element("figure");
  picture.append(worldChoice(), figure);
  redrawn(figure, (width) => stepChart(figure, width));
  onWorld(() => stepChart(figure, figure.clientWidth));
}

function stepChart(figure, width) {
  const height = 160;
  const { step, slowest_ms: slowest, every } = world().steps;
  const [low, median, high] = world().quartiles_ms;
  const top = 1.05 * Math.max(...slowest);
  const inner = width - MARGIN.left - MARGIN.right;
  const x = (i) => MARGIN.left + ((i + 0.5) / step.length) * inner;
  const y = (ms) => height - 24 - (ms / top) * (height - 36);
  const bars = every > 1 ? `Each bar is the slowest of ${every} steps.` : "";
  const about = `${step.length} ${every > 1 ? "bars" : "steps"}, median ${time(median)}, slowest ${time(Math.max(...slowest))}`;
  const chart = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "application",
    "aria-label": `Step times. ${about}. ${bars} Arrow keys choose a step, Enter shows it below.`,
  });
  const tickText = tickTexts(tickStep(top, 3), top);
  for (const value of ticks(top, 3)) {
    chart.append(
      shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      shape("text", { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, tickText(value)),
    );
  }
  const breadth = Math.max(1, Math.min(24, (inner / step.length) * 0.8));
  const marker = shape("rect", { class: "marker", y: 4, width: breadth + 4, height: height - 28, x: -99 });
  chart.append(
    shape("rect", {
      class: "quartiles", x: MARGIN.left, width: inner, y: y(high), height: Math.max(1, y(low) - y(high)),
    }),
    ...slowest.map((ms, i) =>
      shape("rect", { class: "step-bar", x: x(i) - breadth / 2, y: y(ms), width: breadth, height: y(0) - y(ms) }),
    ),
    shape("text", { class: "tick", x: MARGIN.left, y: 10 }, bars),
    shape("text", { class: "tick", x: MARGIN.left - 8, y: height - 6, "text-anchor": "end" }, "step"),
    ...numbered(step.length, inner).map((i) =>
      shape("text", { class: "tick", x: x(i), y: height - 6, "text-anchor": "middle" }, `${step[i]}`)),
    marker,
  );
  figure.replaceChildren(chart);
  steppable(chart, marker, { count: step.length, x, breadth }, (i) => {
    const many = every > 1 ? `step ${step[i]}, the slowest of ${every}` : `step ${step[i]}`;
    return [many, time(slowest[i]), "Enter or click: show it in the timeline"];
  });
}

/** Returns which of `count` bars are numbered: about one in 60 pixels, at round distances. */
function numbered(count, width) {
  const every = Math.max(1, Math.ceil(tickStep(count, Math.max(1, width / 60))));
  return Array.from({ length: Math.ceil(count / every) }, (_, i) => i * every);
}

/** Lets pointer and keys choose one of `count` bars. */
function steppable(chart, marker, bars, lines) {
  let chosen = -1;
  const select = (i, px, py) => {
    chosen = Math.max(0, Math.min(bars.count - 1, i));
    marker.setAttribute("x", bars.x(chosen) - bars.breadth / 2 - 2);
    const box = chart.getBoundingClientRect();
    showTooltip(lines(chosen), px ?? box.left + bars.x(chosen), py ?? box.top + 40);
  };
  const under = (event) => {
    const box = chart.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    return Math.floor(share * bars.count);
  };
  const open = () => chosen >= 0 && showStep(world().steps.step[chosen]);
  chart.addEventListener("pointermove", (event) => select(under(event), event.clientX, event.clientY));
  chart.addEventListener("pointerleave", hideTooltip);
  chart.addEventListener("blur", hideTooltip);
  chart.addEventListener("click", open);
  chart.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (way) select(chosen + way);
    else if (event.key === "Enter") open();
    else return;
    event.preventDefault();
  });
}

// Who waits for whom: the table of the chosen world size, with darker cells for longer waiting.

function drawWaiting() {
  const section = document.getElementById("waiting");
  if (!section) return;
  const tables = [...section.querySelectorAll(".scroll")];
  section.insertBefore(element("div", { class: "controls" }, worldChoice()), tables[0]);
  const none = element("p", { class: "note" });
  section.insertBefore(none, tables[0]);
  tables.forEach(heated);
  onWorld(() => {
    for (const table of tables) {
      table.hidden = table.querySelector("caption").textContent !== worldText(world());
    }
    none.hidden = tables.some((table) => !table.hidden);
    none.textContent = world().ranks === 1
      ? "With one rank there is nobody to wait for."
      : "The ranks' clocks cannot be compared, so it is not known who waits for whom.";
  });
}

function heated(table) {
  const cells = [...table.querySelectorAll("tbody td")];
  const heads = [...table.querySelectorAll("thead th")];
  const values = cells.map((cell) => Number(cell.textContent.replace("<", ""))); // NaN if not known
  const most = Math.max(...values.map((ms) => ms || 0));
  cells.forEach((cell, i) => {
    cell.classList.add("heat");
    const waits = cell.parentElement.firstElementChild.textContent;
    const whom = heads[cell.cellIndex].textContent;
    const less = cell.textContent.startsWith("<") ? "less than " : "";
    const wait = Number.isNaN(values[i]) ? "not known" : `${less}${time(values[i])} per step, on average`;
    explain(cell, () => [`${waits} waits ${whom}`, wait]);
    cell.style.setProperty("--heat", String(values[i] > 0 ? values[i] / most : 0));
  });
}
