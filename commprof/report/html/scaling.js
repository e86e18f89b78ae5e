// Throughput by world size: measured, ideal, and predicted if there is a prediction.
// Both axes are logarithmic, so that ideal scaling is a straight line.

const MARGIN = { left: 56, right: 16, top: 24, bottom: 36 };

/** Meaning of bounds if no recorded steps were held out of the model. */
const SAMPLING_AND_FIT = "the range of sampling and fit alone, not an interval for real steps";

function drawScaling() {
  const picture = document.getElementById("scaling-picture");
  if (!picture) return;
  const known = data.worlds.filter((each) => each.samples_per_s !== null);
  const sizes = new Set([...known, ...data.predicted.flatMap((curve) => curve.points)].map((each) => each.ranks));
  if (!known.length || sizes.size < 2) {
    const text = "A curve needs samples/s of at least two world sizes.";
    picture.append(element("p", { class: "note" }, text));
    return;
  }
  const words = curvesOf(known).map(([curve, kind]) => [kind, curve[0].name || "measured"]);
  const whose = known[0].name ? ` of ${known[0].name}` : "";
  words.push(["ideal", `ideal, from the smallest world size${whose}`]);
  if (data.predicted.length) {
    const bounds = data.predicted.every((curve) => curve.checked) ? "its interval" : SAMPLING_AND_FIT;
    words.push(["predicted", `predicted, with ${bounds}`]);
  }
  const figure = element("figure");
  picture.append(legend(words), figure);
  redrawn(figure, (width) => figure.replaceChildren(scalingChart(known, width)));
}

function scalingChart(known, width) {
  const axes = scalingAxes(known, width);
  const { x, y, height, base, last, ideal } = axes;
  const text = known.map((each) => `${worldText(each)}: ${digits(each.samples_per_s)}`);
  const chart = shape("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": `samples per second. ${text.join("; ")}`,
  });
  for (const value of logTicks(axes.low, axes.top)) {
    chart.append(
      shape("line", { class: "grid", x1: x(base.ranks), x2: x(last), y1: y(value), y2: y(value) }),
      shape("text", { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" },
        digits(value)),
    );
  }
  const straight = axes.sizes.map((ranks) => [x(ranks), y(ideal(ranks))]);
  chart.append(
    shape("text", { class: "tick", x: 4, y: 12 }, "samples/s"),
    shape("text", { class: "tick", x: width / 2, y: height - 4, "text-anchor": "middle" }, "ranks"),
    shape("path", { class: "line ideal", d: pathOf(straight) }),
    ...curvesOf(known).map(([curve, kind]) =>
      shape("path", {
        class: `line ${kind}`, d: pathOf(curve.map((each) => [x(each.ranks), y(each.samples_per_s)])),
      })),
    ...axes.sizes.map((ranks) =>
      shape("text", { class: "tick", x: x(ranks), y: height - MARGIN.bottom + 16, "text-anchor": "middle" },
        ranks)),
    ...data.predicted.flatMap((curve) => predictedCurve(curve, axes)),
    ...curvesOf(known).flatMap(([curve, kind]) => curve.flatMap((each) => measuredPoint(each, kind, curve[0], axes))),
  );
  return chart;
}

function scalingAxes(known, width) {
  const height = Math.max(220, Math.min(340, width * 0.45));
  const base = known[0];
  const predicted = data.predicted.flatMap((curve) => curve.points);
  const sizes = [...new Set([...known, ...predicted].map((each) => each.ranks))].sort((a, b) => a - b);
  const [first, last] = [sizes[0], sizes[sizes.length - 1]];
  const ideal = (ranks) => (base.samples_per_s * ranks) / base.ranks;
  const shown = [
    ideal(last), ...known.map((each) => each.samples_per_s), ...predicted.flatMap((each) => [each.low, each.high]),
    ...known.flatMap((each) => each.samples_per_s_range),
  ].filter((value) => value > 0);
  const [low, top] = [Math.min(...shown) / 1.15, 1.15 * Math.max(...shown)];
  const x = (ranks) =>
    MARGIN.left + (Math.log2(ranks / first) / Math.log2(last / first)) * (width - MARGIN.left - MARGIN.right);
  const y = (value) =>
    height - MARGIN.bottom -
    (Math.log(Math.max(value, low) / low) / Math.log(top / low)) * (height - MARGIN.top - MARGIN.bottom);
  return { x, y, height, base, last, ideal, low, top, sizes };
}

function pathOf(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x} ${y}`).join("");
}

/** Returns [world sizes, class] of the run, or of each strategy. */
function curvesOf(known) {
  const names = [...new Set(known.map((each) => each.name))];
  return names.map((name, i) => [
    known.filter((each) => each.name === name), i ? `series-${Math.min(i, 3)}` : "measured",
  ]);
}

/** `base` is the smallest world size of the same curve, to which the efficiency refers. */
function measuredPoint(each, kind, base, { x, y }) {
  const at = x(each.ranks);
  const point = shape("circle", {
    class: `point ${kind}`, cx: at, cy: y(each.samples_per_s), r: 5, tabindex: 0,
  });
  const [low, high] = each.samples_per_s_range;
  const whisker = low === null ? [] : [shape("line", { class: `line whisker ${kind}`, x1: at, x2: at, y1: y(low), y2: y(high) })];
  const range = low === null ? "" : `, ${digits(low)} to ${digits(high)} (95 %)`;
  explain(point, () => [
    worldText(each),
    `${digits(each.samples_per_s)} samples/s measured${range}`,
    `${digits((base.samples_per_s * each.ranks) / base.ranks)} samples/s would be ideal`,
    `efficiency ${percent(each.efficiency)}`,
  ]);
  return [...whisker, point];
}

function predictedCurve(curve, { x, y }) {
  const line = shape("path", {
    class: "line predicted", d: pathOf(curve.points.map((each) => [x(each.ranks), y(each.value)])),
  });
  const points = curve.points.flatMap((each) => {
    const at = x(each.ranks);
    const whisker = shape("line", { class: "line predicted", x1: at, x2: at, y1: y(each.low), y2: y(each.high) });
    const point = shape("circle", { class: "point predicted", cx: at, cy: y(each.value), r: 5, tabindex: 0 });
    explain(point, () => [
      `${ranksText(each.ranks)}, predicted`,
      `${digits(each.value)} samples/s, ${digits(each.low)} to ${digits(each.high)}`,
      ...(curve.checked ? [] : [`bounds: ${SAMPLING_AND_FIT}`]),
      curve.setting,
      each.outside ? "outside the measured range" : "inside the measured range",
    ]);
    return [whisker, point];
  });
  return [line, ...points];
}

/** Returns a round distance of ticks, with about `count` of them up to `top`. */
function tickStep(top, count) {
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
}

/** Returns round values for a logarithmic axis: 1, 2 and 5 of each decade, or linear ticks if these are fewer than 3. */
function logTicks(low, top) {
  const values = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= top; power *= 10) {
    values.push(...[1, 2, 5].map((factor) => factor * power));
  }
  const inside = (all) => all.filter((value) => value >= low && value <= top);
  return inside(values).length < 3 ? inside(ticks(top, 8)) : inside(values);
}

/** Returns round values from 0 up to `top`. */
function ticks(top, count) {
  const step = tickStep(top, count);
  const values = [];
  for (let value = 0; value <= top; value += step) values.push(value);
  return values;
}
