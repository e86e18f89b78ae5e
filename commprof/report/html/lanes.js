// The timeline's columns as spans, with overlapping collectives on separate lanes.

const MOST_LANES = 8;
/** Parts of a collective's time in flight, in their order. */
const IN_FLIGHT_PARTS = ["negotiate", "queue", "wait", "transfer"];
const IN_FLIGHT_WORDS = { negotiate: "early", queue: "queue", wait: "wait", transfer: "transfer" };

/** Restores values from their differences. */
function summed(differences) {
  let total = 0;
  return differences.map((each) => (total += each));
}

function stretches(columns) {
  const begins = summed(columns.begin);
  return begins.map((begin, i) => ({ begin, end: begin + columns.length[i] }));
}

/** Returns a rank's collectives; times in µs, `parts` null if unknown. */
function intervalsOf(columns) {
  const issues = summed(columns.issue);
  const steps = summed(columns.step);
  const collectives = summed(columns.collective);
  return issues.map((begin, i) => {
    const known = columns.negotiate[i] >= 0;
    const parts = known ? IN_FLIGHT_PARTS.map((name) => columns[name][i]) : null;
    const length = known ? parts.reduce((a, b) => a + b, 0) : columns.transfer[i];
    return {
      begin, end: begin + length, parts,
      kind: columns.kind[i], step: steps[i], collective: collectives[i], bucket: columns.bucket[i],
    };
  });
}

/** Gives each interval the first lane that is free when it begins; returns the number of lanes. */
function laid(intervals) {
  const busyUntil = [];
  for (const interval of intervals) {
    let lane = busyUntil.findIndex((end) => end <= interval.begin);
    if (lane < 0) lane = Math.min(busyUntil.length, MOST_LANES - 1);
    interval.lane = lane;
    busyUntil[lane] = Math.max(busyUntil[lane] ?? 0, interval.end);
  }
  return Math.max(1, busyUntil.length);
}

function decoded(timeline) {
  const ranks = timeline.ranks.map((rank) => {
    const intervals = intervalsOf(rank.intervals);
    const phases = stretches(rank.phases).map((span, i) => ({ ...span, code: rank.phases.code[i] }));
    return {
      rank: rank.rank,
      steps: stretches(rank.steps),
      phases,
      waiting: stretches(rank.waiting),
      intervals,
      lanes: laid(intervals),
    };
  });
  const ends = ranks.flatMap((rank) => rank.steps.map((step) => step.end));
  return { ...timeline, ranks, length: Math.max(1, ...ends) };
}

/** Returns the calls of all ranks that belong to the same collective. */
function together(timeline, collective) {
  return timeline.ranks.flatMap((rank) =>
    rank.intervals
      .filter((interval) => interval.collective === collective)
      .map((interval) => ({ rank: rank.rank, interval })),
  );
}

function kindText(timeline, interval) {
  const [op, , dtype, bytes] = timeline.kinds[interval.kind];
  const call = [op, dtype, bytes > 0 ? megabytes(bytes) : ""].filter(Boolean).join(" ");
  return interval.bucket < 0 ? call : `bucket ${interval.bucket}: ${call}`;
}

/** Returns short text for a box: its bucket, else its operation. */
function shortText(timeline, interval) {
  return interval.bucket < 0 ? timeline.kinds[interval.kind][0] : `bucket ${interval.bucket}`;
}

/** Returns lines that describe one collective on one rank. */
function intervalLines(timeline, rank, interval) {
  const group = timeline.kinds[interval.kind][1];
  const parts = interval.parts
    ? IN_FLIGHT_PARTS.map((name, i) => `${IN_FLIGHT_WORDS[name]} ${time(interval.parts[i] / 1000)}`)
    : ["parts not known"];
  return [
    `${kindText(timeline, interval)} on rank ${rank}`,
    `step ${timeline.steps[interval.step]}, group ${group || "-"}`,
    `in flight ${time((interval.end - interval.begin) / 1000)}`,
    ...parts,
  ];
}
