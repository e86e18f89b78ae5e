// Which part of the timeline shows, where its rows are, and what is under a point.

const GUTTER = 64;
const AXIS = 22;
const STEP_HEIGHT = 13;
const PHASE_HEIGHT = 14;
const WAITING_HEIGHT = 6;
const LANE_HEIGHT = 14;
const ROW_GAP = 10;
const SHORTEST = 20; // µs: no use in zooming in further

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

/** Shows [from, to], moved and cut so that it lies in the timeline. */
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

/** The i-th step that is here, over all ranks. */
function stepWindow(view, i) {
  const spans = view.timeline.ranks.map((rank) => rank.steps[i]).filter(Boolean);
  return [Math.min(...spans.map((s) => s.begin)), Math.max(...spans.map((s) => s.end))];
}

/** The step in the middle of what shows. */
function stepShown(view) {
  const middle = (view.from + view.to) / 2;
  const steps = view.timeline.ranks[0]?.steps ?? [];
  const at = steps.findIndex((step) => middle < step.end);
  return at < 0 ? steps.length - 1 : at;
}

/** Keeps a chosen collective in sight. */
function bringInto(view, flight) {
  const length = view.to - view.from;
  if (flight.begin < view.from || flight.end > view.to) {
    const middle = (flight.begin + flight.end) / 2;
    show(view, middle - length / 2, middle + length / 2);
  }
}

/** {rank, flight}, {rank, phase}, {rank, waiting} or null. */
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
  const flight = row.rank.flights.find((each) => each.lane === lane && covers(each));
  return flight ? { rank: row.rank, flight } : null;
}
