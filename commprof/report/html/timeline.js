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
    legend([...PHASE_LEGEND, ...FLIGHT_LEGEND]), timelineControls(state), about,
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
const FLIGHT_LEGEND = [
  ["waiting", "training thread waits"], ["negotiate", "early: waiting for the last rank"],
  ["queue", "queue: until it runs here"], ["wait", "wait: until it runs on the last rank"], ["wire", "transfer"],
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
      "left out, for the page has no room for them."
    : `All ${all} measured steps.`;
  const cut = timeline.left_out ? ` ${timeline.left_out} spans had no room.` : "";
  const clocks = timeline.clocks_shared
    ? ""
    : " The ranks' clocks were not compared: times of different ranks cannot be.";
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

/** Marks a collective on all ranks and lists it; null takes the mark away. */
function choose(state, found) {
  state.view.chosen = found && found.flight;
  state.view.chosenRank = found && found.rank;
  if (found) bringInto(state.view, found.flight);
  state.chosen.replaceChildren(...(found ? [chosenTable(state.view.timeline, found.flight)] : []));
  drawTimelineOn(state.canvas, state.view);
}

function chosenTable(timeline, flight) {
  const calls = together(timeline, flight.collective);
  const first = Math.min(...calls.map((call) => call.flight.begin));
  const rows = calls.map(({ rank, flight: each }) => {
    const parts = each.parts ?? FLIGHT_PARTS.map(() => null);
    const times = [each.begin - first, ...parts, each.end - each.begin];
    const cells = times.map((us) => element("td", {}, time(us === null ? null : us / 1000)));
    return element("tr", {}, element("th", { scope: "row" }, `rank ${rank}`), ...cells);
  });
  const heads = ["", "issued after the first", ...FLIGHT_PARTS.map((name) => FLIGHT_WORDS[name]), "in flight"];
  return element(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The chosen collective" },
    element(
      "table", {},
      element("caption", {}, `${kindText(timeline, flight)}, step ${timeline.steps[flight.step]}`),
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows),
    ),
  );
}
