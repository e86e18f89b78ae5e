// Throughput over world sizes: measured, and what the smallest one would scale to ideally.

const MARGIN = { left: 56, right: 16, top: 24, bottom: 36 };

function drawScaling() {
  const picture = document.getElementById("scaling-picture");
  if (!picture) return;
  const known = data.worlds.filter((each) => each.samples_per_s !== null);
  if (known.length < 2) {
    picture.append(
      element("p", { class: "note" }, "A curve takes samples/s of two world sizes or more."),
    );
    return;
  }
  const figure = element("figure");
  picture.append(
    legend([["measured", "measured"], ["ideal", "ideal, from the smallest world size"]]),
    figure,
  );
  redrawn(figure, (width) => figure.replaceChildren(scalingChart(known, width)));
}

function scalingChart(known, width) {
  const height = Math.max(220, Math.min(340, width * 0.45));
  const base = known[0];
  const ideal = (ranks) => (base.samples_per_s * ranks) / base.ranks;
  const last = known[known.length - 1].ranks;
  const top = 1.05 * Math.max(ideal(last), ...known.map((each) => each.samples_per_s));
  const spread = Math.log2(last / base.ranks);
  const x = (ranks) =>
    MARGIN.left + (Math.log2(ranks / base.ranks) / spread) * (width - MARGIN.left - MARGIN.right);
  const y = (value) =>
    height - MARGIN.bottom - (value / top) * (height - MARGIN.top - MARGIN.bottom);
  const text = known.map((each) => `${ranksText(each.ranks)}: ${digits(each.samples_per_s)}`);
  const chart = shape("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": `samples per second. ${text.join("; ")}`,
  });
  for (const value of ticks(top, 5)) {
    chart.append(
      shape("line", { class: "grid", x1: x(base.ranks), x2: x(last), y1: y(value), y2: y(value) }),
      shape("text", { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" },
        digits(value)),
    );
  }
  const path = (value) =>
    known.map((each, i) => `${i ? "L" : "M"}${x(each.ranks)} ${y(value(each))}`).join("");
  chart.append(
    shape("path", { class: "line ideal", d: path((each) => ideal(each.ranks)) }),
    shape("path", { class: "line measured", d: path((each) => each.samples_per_s) }),
    shape("text", { class: "tick", x: 4, y: 12 }, "samples/s"),
    shape("text", { class: "tick", x: width / 2, y: height - 4, "text-anchor": "middle" }, "ranks"),
  );
  for (const each of known) {
    const point = shape("circle", {
      class: "point measured", cx: x(each.ranks), cy: y(each.samples_per_s), r: 5, tabindex: 0,
    });
    explain(point, () => [
      ranksText(each.ranks),
      `${digits(each.samples_per_s)} samples/s measured`,
      `${digits(ideal(each.ranks))} samples/s would be ideal`,
      `efficiency ${percent(each.efficiency)}`,
    ]);
    chart.append(
      shape("text", { class: "tick", x: x(each.ranks), y: height - MARGIN.bottom + 16, "text-anchor": "middle" },
        each.ranks),
      point,
    );
  }
  return chart;
}

/** A round distance of ticks, about so many of them up to `top`. */
function tickStep(top, count) {
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
}

/** Round values from 0 up to `top`. */
function ticks(top, count) {
  const step = tickStep(top, count);
  const values = [];
  for (let value = 0; value <= top; value += step) values.push(value);
  return values;
}
