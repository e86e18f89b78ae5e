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
      choose(state, found && found.flight ? found : null);
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
  const lines = found.flight
    ? flightLines(state.view.timeline, found.rank.rank, found.flight)
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

/** The next collective of the chosen rank, or the first one that shows. */
function chooseNext(state, way) {
  const { view } = state;
  const rank = view.chosenRank ?? view.timeline.ranks[0];
  if (!rank || !rank.flights.length) return;
  const at = rank.flights.indexOf(view.chosen);
  const first = rank.flights.findIndex((flight) => flight.begin >= view.from);
  const next = at < 0 ? Math.max(0, first) : at + way;
  const flight = rank.flights[Math.max(0, Math.min(rank.flights.length - 1, next))];
  announce(state, { rank, flight });
}

/** The same collective on another rank. */
function chooseRank(state, way) {
  const { view } = state;
  if (!view.chosen) return chooseNext(state, 1);
  const ranks = view.timeline.ranks;
  const rank = ranks[ranks.indexOf(view.chosenRank) + way];
  const same = rank && rank.flights.find((each) => each.collective === view.chosen.collective);
  if (same) announce(state, { rank, flight: same });
}

function announce(state, found) {
  choose(state, found);
  const bounds = state.canvas.getBoundingClientRect();
  const row = state.view.rows.find((each) => each.rank === found.rank);
  const x = Math.max(GUTTER, xOf(state.view, found.flight.begin));
  const lines = flightLines(state.view.timeline, found.rank.rank, found.flight);
  showTooltip(lines, bounds.left + x, bounds.top + row.bottom - ROW_GAP);
}
