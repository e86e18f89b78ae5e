// The visible part of the timeline, the place of its rows, and the object under a point.

const GUTTER = 64;
const AXIS = 22;
const STEP_HEIGHT = 13;
const PHASE_HEIGHT = 14;
const WAITING_HEIGHT = 6;
const LANE_HEIGHT = 14;
const ROW_GAP = 10;
const SHORTEST = 20; // µs: shortest visible time
const MOST_PIXELS = 32767; // of a canvas's height: Firefox draws nothing on a higher one

function makeView(timeline) {
  let y = AXIS;
  const rows = timeline.ranks.map((rank) => {
    const top = y + STEP_HEIGHT;
    y += STEP_HEIGHT + PHASE_HEIGHT + WAITING_HEIGHT + rank.lanes * LANE_HEIGHT + ROW_GAP;
    return { rank, top, bottom: y };
  });
  return { timeline, rows, height: y, width: 0, from: 0, to: timeline.length, chosen: null };
}

function xOf(view, time) {
  return GUTTER + ((time - view.from) / (view.to - view.from)) * (view.width - GUTTER);
}

function timeAt(view, x) {
  return view.from + ((x - GUTTER) / (view.width - GUTTER)) * (view.to - view.from);
}

/** Shows [from, to], moved and cut to lie within the timeline. */
function show(view, from, to) {
  const length = Math.min(view.timeline.length, Math.max(SHORTEST, to - from));
  view.from = Math.max(0, Math.min(view.timeline.length - length, from));
  view.to = view.from + length;
}

/** Larger factors show less; the time at `x` stays where it is. */
function zoom(view, factor, x = GUTTER + (view.width - GUTTER) / 2) {
  const fixed = timeAt(view, Math.max(GUTTER, x));
  show(view, fixed - (fixed - view.from) / factor, fixed + (view.to - fixed) / factor);
}

function pan(view, share) {
  const by = (view.to - view.from) * share;
  show(view, view.from + by, view.to + by);
}

/** Returns begin and end of the i-th step of the timeline over all ranks. */
function stepWindow(view, i) {
  const spans = view.timeline.ranks.map((rank) => rank.steps[i]).filter(Boolean);
  return [Math.min(...spans.map((s) => s.begin)), Math.max(...spans.map((s) => s.end))];
}

/** Returns the index of the step in the middle of the visible part. */
function stepShown(view) {
  const middle = (view.from + view.to) / 2;
  const steps = view.timeline.ranks[0]?.steps ?? [];
  const at = steps.findIndex((step) => middle < step.end);
  return at < 0 ? steps.length - 1 : at;
}

/** Keeps a chosen collective in sight. */
function bringInto(view, interval) {
  const length = view.to - view.from;
  if (interval.begin < view.from || interval.end > view.to) {
    const middle = (interval.begin + interval.end) / 2;
    show(view, middle - length / 2, middle + length / 2);
  }
}

/** Returns the object at a point: {rank, interval}, {rank, phase}, {rank, waiting} or null. */
function hit(view, x, y) {
  const row = view.rows.find((each) => y >= each.top && y < each.bottom);
  if (!row || x < GUTTER) return null;
  const slack = ((view.to - view.from) / (view.width - GUTTER)) * 2;
  const at = timeAt(view, x);
  const covers = (span) => at >= span.begin - slack && at <= span.end + slack;
  const below = y - row.top;
  if (below < PHASE_HEIGHT) {
    const phase = row.rank.phases.find(covers);
    return phase ? { rank: row.rank, phase } : null;
  }
  if (below < PHASE_HEIGHT + WAITING_HEIGHT) {
    const waiting = row.rank.waiting.find(covers);
    return waiting ? { rank: row.rank, waiting } : null;
  }
  const lane = Math.floor((below - PHASE_HEIGHT - WAITING_HEIGHT) / LANE_HEIGHT);
  const interval = row.rank.intervals.find((each) => each.lane === lane && covers(each));
  return interval ? { rank: row.rank, interval } : null;
}

// Drawing of the visible part of the timeline on a canvas.

function drawTimelineOn(canvas, view) {
  const scale = Math.min(devicePixelRatio || 1, MOST_PIXELS / view.height); // below 1 for hundreds of ranks
  canvas.width = Math.round(view.width * scale);
  canvas.height = Math.round(view.height * scale);
  canvas.style.height = `${view.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif";
  const theme = Object.fromEntries(
    ["text", "faint", "grid", "background", "data", "forward", "backward", "optimizer", "other",
      "waiting", "negotiate", "queue", "wait", "transfer", "unsplit", "focus"]
      .map((name) => [name, colour(name)]),
  );
  drawAxis(pen, view, theme);
  for (const row of view.rows) {
    drawRow(pen, view, row, theme);
  }
}

function drawAxis(pen, view, theme) {
  const every = tickStep((view.to - view.from) / 1000, Math.max(2, view.width / 120)) * 1000;
  const tickText = tickTexts(every / 1000, view.to / 1000);
  pen.textBaseline = "middle";
  for (let at = Math.ceil(view.from / every) * every; at <= view.to; at += every) {
    const x = xOf(view, at);
    pen.fillStyle = theme.grid;
    pen.fillRect(x, AXIS - 4, 1, view.height - AXIS);
    pen.fillStyle = theme.faint;
    pen.fillText(tickText(at / 1000), Math.min(x + 3, view.width - 64), 9);
  }
}

function drawRow(pen, view, row, theme) {
  const { rank, top } = row;
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, top, view.width - GUTTER, row.bottom - top);
  pen.clip();
  for (const phase of rank.phases) {
    const name = view.timeline.phases[phase.code] ?? "other";
    box(pen, view, phase, top, PHASE_HEIGHT - 1, theme[name] ?? theme.other);
    label(pen, view, phase, top, PHASE_HEIGHT, name, theme);
  }
  for (const span of rank.waiting) {
    box(pen, view, span, top + PHASE_HEIGHT, WAITING_HEIGHT - 1, theme.waiting);
  }
  for (const interval of rank.intervals) {
    drawInterval(pen, view, row, interval, theme);
  }
  pen.restore();
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, top - STEP_HEIGHT, view.width - GUTTER, row.bottom - top + STEP_HEIGHT);
  pen.clip();
  rank.steps.forEach((step, i) => {
    box(pen, view, { begin: step.begin, end: step.begin }, top - STEP_HEIGHT, row.bottom - top - 4, theme.faint);
    label(pen, view, step, top - STEP_HEIGHT, STEP_HEIGHT, `step ${view.timeline.steps[i]}`, theme, theme.faint);
  });
  pen.restore();
  pen.fillStyle = theme.text;
  pen.fillText(`rank ${rank.rank}`, 2, top + PHASE_HEIGHT);
}

function drawInterval(pen, view, row, interval, theme) {
  if (interval.end < view.from || interval.begin > view.to) return;
  const y = row.top + PHASE_HEIGHT + WAITING_HEIGHT + interval.lane * LANE_HEIGHT;
  if (!interval.parts) {
    box(pen, view, interval, y, LANE_HEIGHT - 2, theme.unsplit);
  } else {
    let begin = interval.begin;
    interval.parts.forEach((length, i) => {
      if (length > 0) {
        box(pen, view, { begin, end: begin + length }, y, LANE_HEIGHT - 2, theme[IN_FLIGHT_PARTS[i]]);
      }
      begin += length;
    });
  }
  label(pen, view, interval, y, LANE_HEIGHT - 1, shortText(view.timeline, interval), theme);
  if (view.chosen && view.chosen.collective === interval.collective) {
    const x = xOf(view, interval.begin);
    pen.strokeStyle = theme.focus;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, Math.max(3, xOf(view, interval.end) - x + 2), LANE_HEIGHT);
  }
}

/** Writes text at the begin of the visible part of a span, if there is room. */
function label(pen, view, span, y, height, text, theme, fill = theme.background) {
  const x = xOf(view, Math.max(span.begin, view.from));
  const room = xOf(view, Math.min(span.end, view.to)) - x - 4;
  if (room < 12) return;
  pen.save();
  pen.font = `${height - 3}px system-ui, sans-serif`;
  if (pen.measureText(text).width <= room) {
    pen.fillStyle = fill;
    pen.fillText(text, x + 3, y + height / 2);
  }
  pen.restore();
}

/** Draws a span as a box that is wide enough to be seen. */
function box(pen, view, span, y, height, fill) {
  if (span.end < view.from || span.begin > view.to) return;
  const x = xOf(view, Math.max(span.begin, view.from));
  const end = xOf(view, Math.min(span.end, view.to));
  pen.fillStyle = fill;
  pen.fillRect(x, y, Math.max(0.7, end - x), height);
}

// Pointer and keys over the timeline.

function pointed(state) {
  const { canvas } = state;
  let drag = null;
  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) dragged(state, drag, event.clientX);
    else hover(state, hit(state.view, ...place(event)), event);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const found = hit(state.view, ...place(event));
      choose(state, found && found.interval ? found : null);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("blur", hideTooltip);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    changed(state, () => zoom(state.view, event.deltaY < 0 ? 1.25 : 0.8, place(event)[0]));
  }, { passive: false });
}

function dragged(state, drag, x) {
  if (!drag.moved && Math.abs(x - drag.x) < 4) return;
  drag.moved = true;
  changed(state, () => pan(state.view, (drag.x - x) / (state.view.width - GUTTER)));
  drag.x = x;
}

function hover(state, found, event) {
  if (!found) return hideTooltip();
  const lines = found.interval
    ? intervalLines(state.view.timeline, found.rank.rank, found.interval)
    : spanLines(state.view.timeline, found);
  showTooltip(lines, event.clientX, event.clientY);
}

function spanLines(timeline, { rank, phase, waiting }) {
  if (waiting) {
    return [`the training thread waits on rank ${rank.rank}`, time((waiting.end - waiting.begin) / 1000)];
  }
  const name = timeline.phases[phase.code] ?? "other";
  return [`${name} on rank ${rank.rank}`, `${time((phase.end - phase.begin) / 1000)}, waiting included`];
}

function keyed(state, event) {
  const { view } = state;
  const acts = {
    ArrowLeft: () => pan(view, -0.2),
    ArrowRight: () => pan(view, 0.2),
    "+": () => zoom(view, 1.5),
    "=": () => zoom(view, 1.5),
    "-": () => zoom(view, 1 / 1.5),
    Home: () => show(view, 0, view.timeline.length),
    PageDown: () => neighbour(state, 1),
    PageUp: () => neighbour(state, -1),
    n: () => chooseNext(state, 1),
    p: () => chooseNext(state, -1),
    ArrowDown: () => chooseRank(state, 1),
    ArrowUp: () => chooseRank(state, -1),
    Escape: () => choose(state, null),
  };
  const act = acts[event.key] ?? acts[event.key.toLowerCase()];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  changed(state, act);
}

/** Chooses the next collective of the chosen rank, or the first visible one. */
function chooseNext(state, way) {
  const { view } = state;
  const rank = view.chosenRank ?? view.timeline.ranks[0];
  if (!rank || !rank.intervals.length) return;
  const at = rank.intervals.indexOf(view.chosen);
  const first = rank.intervals.findIndex((interval) => interval.begin >= view.from);
  const next = at < 0 ? Math.max(0, first) : at + way;
  const interval = rank.intervals[Math.max(0, Math.min(rank.intervals.length - 1, next))];
  announce(state, { rank, interval });
}

/** Chooses the same collective on another rank. */
function chooseRank(state, way) {
  const { view } = state;
  if (!view.chosen) return chooseNext(state, 1);
  const ranks = view.timeline.ranks;
  const rank = ranks[ranks.indexOf(view.chosenRank) + way];
  const same = rank && rank.intervals.find((each) => each.collective === view.chosen.collective);
  if (same) announce(state, { rank, interval: same });
}

function announce(state, found) {
  choose(state, found);
  const bounds = state.canvas.getBoundingClientRect();
  const row = state.view.rows.find((each) => each.rank === found.rank);
  const x = Math.max(GUTTER, xOf(state.view, found.interval.begin));
  const lines = intervalLines(state.view.timeline, found.rank.rank, found.interval);
  showTooltip(lines, bounds.left + x, bounds.top + row.bottom - ROW_GAP);
}

// The timeline's controls: buttons, wheel, drag, keys; and the table of the chosen collective.

let showStep = () => {};

function drawTimeline() {
  const picture = document.getElementById("timeline-picture");
  if (!picture) return;
  const canvas = element("canvas", {
    tabindex: 0, role: "application", "aria-describedby": "timeline-keys",
    "aria-label": "Timeline of the collectives of each rank",
  });
  const about = element("p", { class: "note", id: "timeline-about" });
  const chosen = element("div", { id: "timeline-chosen", "aria-live": "polite" });
  const state = { view: null, canvas, chosen };
  picture.append(
    legend([...PHASE_LEGEND, ...IN_FLIGHT_LEGEND]), timelineControls(state), about,
    element("div", { class: "canvas-box" }, canvas),
    element("p", { class: "note", id: "timeline-keys" }, KEYS), chosen,
  );
  onWorld(() => {
    state.view = makeView(decoded(world().timeline));
    state.view.width = canvas.parentElement.clientWidth;
    about.textContent = aboutTimeline(state.view.timeline);
    const first = stepShown(state.view);
    if (first >= 0) show(state.view, ...stepWindow(state.view, first));
    choose(state, null);
  });
  redrawn(canvas.parentElement, (width) => {
    state.view.width = width;
    drawTimelineOn(canvas, state.view);
  });
  pointed(state);
  canvas.addEventListener("keydown", (event) => keyed(state, event));
  showStep = (number) => goToStep(state, state.view.timeline.steps.indexOf(number), number);
}

const PHASE_LEGEND = ["data", "forward", "backward", "optimizer", "other"].map((name) => [name, name]);
const IN_FLIGHT_LEGEND = [
  ["waiting", "training thread waits"], ["negotiate", "early: waiting for the last rank"],
  ["queue", "queue: until it runs on this rank"], ["wait", "wait: until it runs on the last rank"], ["transfer", "transfer"],
  ["unsplit", "not split"],
];
const KEYS =
  "Drag to move; Ctrl and wheel to zoom; click a collective to see it on all ranks. With the " +
  "keyboard: arrows left and right move, + and - zoom, Page Up and Page Down change the step, " +
  "Home shows all, N and P choose the next and the previous collective, arrows up and down its rank.";

function aboutTimeline(timeline) {
  const { steps, measured_steps: all } = timeline;
  if (!steps.length) return "No step was recorded by all ranks.";
  const shown = steps.length < all
    ? `Steps ${steps[0]} to ${steps[steps.length - 1]}; the other ${all - steps.length} of ${all} measured steps are ` +
      "left out because the page has no room for them."
    : `All ${all} measured steps.`;
  const cut = timeline.left_out ? ` ${timeline.left_out} spans are left out for lack of room.` : "";
  const clocks = timeline.clocks_shared
    ? ""
    : " The ranks' clocks were not compared, so times of different ranks cannot be compared.";
  return shown + cut + clocks;
}

function timelineControls(state) {
  const button = (text, title, act) => {
    const made = element("button", { type: "button", title }, text);
    made.addEventListener("click", () => changed(state, act));
    return made;
  };
  return element(
    "div", { class: "controls" }, worldChoice(),
    button("+", "Zoom in", () => zoom(state.view, 2)),
    button("−", "Zoom out", () => zoom(state.view, 0.5)),
    button("◀ step", "Previous step", () => neighbour(state, -1)),
    button("step ▶", "Next step", () => neighbour(state, 1)),
    button("all", "All steps", () => show(state.view, 0, state.view.timeline.length)),
  );
}

function changed(state, act) {
  act();
  drawTimelineOn(state.canvas, state.view);
}

function neighbour(state, way) {
  const last = state.view.timeline.steps.length - 1;
  const at = Math.max(0, Math.min(last, stepShown(state.view) + way));
  if (last >= 0) show(state.view, ...stepWindow(state.view, at));
}

function goToStep(state, at, number) {
  if (at < 0) {
    state.chosen.replaceChildren(element("p", {}, `Step ${number} is not in this page's timeline.`));
  } else {
    changed(state, () => show(state.view, ...stepWindow(state.view, at)));
  }
  document.getElementById("timeline").scrollIntoView();
  state.canvas.focus({ preventScroll: true });
}

/** Marks a collective on all ranks and lists it; null removes the mark. */
function choose(state, found) {
  state.view.chosen = found && found.interval;
  state.view.chosenRank = found && found.rank;
  if (found) bringInto(state.view, found.interval);
  state.chosen.replaceChildren(...(found ? [chosenTable(state.view.timeline, found.interval)] : []));
  drawTimelineOn(state.canvas, state.view);
}

function chosenTable(timeline, interval) {
  const calls = together(timeline, interval.collective);
  const first = Math.min(...calls.map((call) => call.interval.begin));
  const rows = calls.map(({ rank, interval: each }) => {
    const parts = each.parts ?? IN_FLIGHT_PARTS.map(() => null);
    const times = [each.begin - first, ...parts, each.end - each.begin];
    const cells = times.map((us) => element("td", {}, time(us === null ? null : us / 1000)));
    return element("tr", {}, element("th", { scope: "row" }, `rank ${rank}`), ...cells);
  });
  const heads = ["", "issued after the first", ...IN_FLIGHT_PARTS.map((name) => IN_FLIGHT_WORDS[name]), "in flight"];
  return element(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The chosen collective" },
    element(
      "table", {},
      element("caption", {}, `${kindText(timeline, interval)}, step ${timeline.steps[interval.step]}`),
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows),
    ),
  );
}
