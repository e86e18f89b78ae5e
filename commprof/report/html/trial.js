// A trial: the parts of the baseline's step, and each candidate's step divided by it.

const TRIAL_ROW = 38;

function drawTrial() {
  const picture = document.getElementById("trial-picture");
  if (!picture) return;
  for (const each of data.baseline) {
    const title = `Where the step of ${each.label} goes: the median of each part`;
    picture.append(
      legend(PARTS.filter(([name]) => partsOf(each)[name] > 0)), bars(title, [[each.label, each]], true),
    );
  }
  if (!data.trial.length) return;
  const figure = element("figure");
  const words = "Step divided by none's step, with its 95 % interval: left of the line is faster.";
  picture.append(element("p", { class: "note" }, words), figure);
  redrawn(figure, (width) => figure.replaceChildren(trialChart(width)));
}

function trialChart(width) {
  const height = data.trial.length * TRIAL_ROW + 28;
  const most = Math.max(1, ...data.trial.map((each) => each.high));
  const least = Math.min(1, ...data.trial.map((each) => each.low));
  const slack = 0.06 * (most - least) || 0.05;
  const x = (ratio) => 8 + ((ratio - least + slack) / (most - least + 2 * slack)) * (width - 16);
  const text = data.trial.map((each) => trialLines(each).slice(0, 2).join(" "));
  const chart = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": text.join("; "),
  });
  for (const [value, label] of ratioTicks(least - slack, most + slack)) {
    const end = { x1: x(value), x2: x(value), y1: 0, y2: height - 24 };
    chart.append(
      shape("line", { class: "grid", ...end }),
      shape("text", { class: "tick", x: x(value), y: height - 6, "text-anchor": "middle" }, label),
    );
  }
  chart.append(
    shape("line", { class: "line ideal", x1: x(1), x2: x(1), y1: 0, y2: height - 24 }),
    ...data.trial.flatMap((each, i) => trialRow(each, i * TRIAL_ROW, x)),
  );
  return chart;
}

function trialRow(each, top, x) {
  const y = top + 26;
  const kind = each.role === "candidate" ? "measured" : "predicted";
  const point = shape("circle", { class: `point ${kind}`, cx: x(each.value), cy: y, r: 5, tabindex: 0 });
  explain(point, () => trialLines(each));
  return [
    shape("text", { class: "row-label", x: 8, y: top + 14 }, each.label),
    shape("line", { class: `line ${kind}`, x1: x(each.low), x2: x(each.high), y1: y, y2: y }),
    point,
  ];
}

function trialLines(each) {
  return [
    each.label,
    `${each.value.toFixed(3)} times none's step, ${each.low.toFixed(3)} to ${each.high.toFixed(3)}`,
    `step ${time(each.step_ms)}`,
  ];
}

/** Returns round values between two ratios, each with text that tells it from its neighbours. */
function ratioTicks(from, to) {
  const step = tickStep(to - from, 5);
  const places = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  const values = [];
  for (let i = Math.ceil(from / step); i * step <= to; i += 1) values.push([i * step, (i * step).toFixed(places)]);
  return values;
}
