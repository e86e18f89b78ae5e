// Draws what shows of the timeline on a canvas.

function drawTimelineOn(canvas, view) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(view.width * scale);
  canvas.height = Math.round(view.height * scale);
  canvas.style.height = `${view.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif";
  const theme = Object.fromEntries(
    ["text", "faint", "grid", "background", "data", "forward", "backward", "optimizer", "other",
      "waiting", "negotiate", "queue", "wait", "wire", "unsplit", "focus"]
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
  for (const flight of rank.flights) {
    drawFlight(pen, view, row, flight, theme);
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

function drawFlight(pen, view, row, flight, theme) {
  if (flight.end < view.from || flight.begin > view.to) return;
  const y = row.top + PHASE_HEIGHT + WAITING_HEIGHT + flight.lane * LANE_HEIGHT;
  if (!flight.parts) {
    box(pen, view, flight, y, LANE_HEIGHT - 2, theme.unsplit);
  } else {
    let begin = flight.begin;
    flight.parts.forEach((length, i) => {
      if (length > 0) {
        box(pen, view, { begin, end: begin + length }, y, LANE_HEIGHT - 2, theme[FLIGHT_PARTS[i]]);
      }
      begin += length;
    });
  }
  label(pen, view, flight, y, LANE_HEIGHT - 1, shortText(view.timeline, flight), theme);
  if (view.chosen && view.chosen.collective === flight.collective) {
    const x = xOf(view, flight.begin);
    pen.strokeStyle = theme.focus;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, Math.max(3, xOf(view, flight.end) - x + 2), LANE_HEIGHT);
  }
}

/** Text at the begin of what shows of a span, where it has room for it. */
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

/** A span as a box, never narrower than can be seen. */
function box(pen, view, span, y, height, fill) {
  if (span.end < view.from || span.begin > view.to) return;
  const x = xOf(view, Math.max(span.begin, view.from));
  const end = xOf(view, Math.min(span.end, view.to));
  pen.fillStyle = fill;
  pen.fillRect(x, y, Math.max(0.7, end - x), height);
}
