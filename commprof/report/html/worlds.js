// The world size that the pictures show: one choice for the whole page.

const data = JSON.parse(document.getElementById("data").textContent);
const worldListeners = [];
let chosenWorld = data.worlds.length - 1;

function world() {
  return data.worlds[chosenWorld];
}

/** Calls back now, and whenever another world size is chosen. */
function onWorld(listener) {
  worldListeners.push(listener);
  listener();
}

function chooseWorld(index) {
  chosenWorld = index;
  for (const select of document.querySelectorAll("select.world")) {
    select.value = String(index);
  }
  worldListeners.forEach((listener) => listener());
}

function ranksText(count) {
  return count === 1 ? "1 rank" : `${count} ranks`;
}

/** Returns the name of a world size, with its strategy if the page shows several. */
function worldText(each) {
  return each.name ? `${each.name}, ${ranksText(each.ranks)}` : ranksText(each.ranks);
}

/** Returns a labelled choice of the world size; empty if there is only one. */
function worldChoice() {
  if (data.worlds.length < 2) return "";
  const options = data.worlds.map((each, i) =>
    element("option", { value: i }, worldText(each)),
  );
  const select = element("select", { class: "world" }, ...options);
  select.value = String(chosenWorld);
  select.addEventListener("change", () => chooseWorld(Number(select.value)));
  return element("label", { class: "control" }, "World size ", select);
}
