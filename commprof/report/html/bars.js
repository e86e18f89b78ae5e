// Where the mean step went: a bar per world size, and one per rank of the chosen world size.

const PARTS = [
  ["data", "data loading"],
  ["forward", "compute: forward"],
  ["backward", "compute: backward"],
  ["unphased_compute", "compute: phase not known"],
  ["wait", "exposed: waiting for the last rank"],
  ["transfer", "exposed: transfer"],
  ["unsplit", "exposed: not split"],
  ["optimizer", "optimizer"],
  ["other", "other"],
  ["copies", "copies of a GPU"],
  ["idle", "idle GPU"],
];
/** Parts of "other" on a GPU whose kernels were recorded; null or 0 without them. */
const OF_OTHER = ["unphased_compute", "copies", "idle"];

/** Returns the parts of the step by name, in ms; they add up to the step. */
function partsOf(row) {
  const wait = row.wait ?? 0;
  const transfer = row.transfer ?? 0;
  const known = OF_OTHER.reduce((sum, name) => sum + (row[name] ?? 0), 0);
  const other = known > 0 ? 0 : row.other;
  return { ...row, wait, transfer, unsplit: Math.max(0, row.exposed - wait - transfer), other };
}

function legend(names) {
  const items = names.map(([name, text]) =>
    element("li", {}, element("span", { class: `swatch ${name}` }), text),
  );
  return element("ul", { class: "legend-list" }, ...items);
}

function bar(label, row, longest) {
  const parts = partsOf(row);
  const described = PARTS.filter(([name]) => parts[name] > 0).map(
    ([name, text]) => `${text} ${time(parts[name])}, ${percent(parts[name] / parts.step)}`,
  );
  const lines = [`${label}: ${time(parts.step)}`, ...described];
  if (parts.hidden > 0) {
    lines.push(`hidden by work: ${time(parts.hidden)} of communication`);
  }
  const segments = PARTS.filter(([name]) => parts[name] > 0).map(([name]) => {
    const segment = element("div", { class: `segment ${name}` });
    segment.style.flexGrow = String(parts[name]);
    const word = IN_FLIGHT_WORDS[name] ?? name;
    segment.append(element("span", { class: word.length > 5 ? "name long" : "name" }, word));
    return segment;
  });
  const stack = element("div", { class: "stack" }, ...segments);
  stack.style.width = `${(100 * parts.step) / longest}%`;
  const hidden = element("div", { class: "segment hidden-part" });
  hidden.style.width = `${(100 * parts.hidden) / longest}%`;
  const track = element("div", { class: "track" }, stack, hidden);
  const made = element(
    "div",
    { class: "bar", tabindex: "0", role: "img", "aria-label": lines.join("; ") },
    element("span", { class: "bar-label" }, label),
    track,
    element("span", { class: "bar-value" }, time(parts.step)),
  );
  explain(made, () => lines);
  return made;
}

function bars(title, rows, named = false) {
  const longest = Math.max(...rows.map(([, row]) => Math.max(row.step, row.hidden ?? 0)));
  return element(
    "figure",
    { class: named ? "bars named" : "bars" },
    element("figcaption", {}, title),
    ...rows.map(([label, row]) => bar(label, row, longest)),
  );
}

function drawSteps() {
  const picture = document.getElementById("step-picture");
  if (!picture) return;
  const ranks = element("div");
  const all = data.worlds.map((each) => [worldText(each), each.mean]);
  const onGpu = all.some(([, row]) => row.unphased_compute !== null);
  const left = onGpu ? ["other"] : OF_OTHER;
  const shown = PARTS.filter(([name]) => !left.includes(name));
  picture.append(
    legend([...shown, ["hidden-part", "hidden: communication during other work"]]),
    bars("Mean step by world size", all, data.worlds.some((each) => each.name)),
    worldChoice(),
    ranks,
  );
  onWorld(() => {
    const rows = world().parts.map((row) => [`rank ${row.rank}`, row]);
    ranks.replaceChildren(bars(`Mean step of each rank: ${worldText(world())}`, rows));
  });
}
