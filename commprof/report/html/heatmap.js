// Who waits for whom: the table of the chosen world size, each cell as dark as its waiting is long.

function drawWaiting() {
  const section = document.getElementById("waiting");
  if (!section) return;
  const tables = [...section.querySelectorAll(".scroll")];
  section.insertBefore(element("div", { class: "controls" }, worldChoice()), tables[0]);
  const none = element("p", { class: "note" }, "One rank alone waits for nobody.");
  section.insertBefore(none, tables[0]);
  tables.forEach(heated);
  onWorld(() => {
    for (const table of tables) {
      table.hidden = table.querySelector("caption").textContent !== worldText(world());
    }
    none.hidden = tables.some((table) => !table.hidden);
  });
}

function heated(table) {
  const cells = [...table.querySelectorAll("tbody td")];
  const heads = [...table.querySelectorAll("thead th")];
  const values = cells.map((cell) => Number(cell.textContent) || 0);
  const most = Math.max(...values);
  cells.forEach((cell, i) => {
    cell.classList.add("heat");
    const waits = cell.parentElement.firstElementChild.textContent;
    const whom = heads[cell.cellIndex].textContent;
    explain(cell, () => [`${waits} waits ${whom}`, `${time(values[i])} per step, on average`]);
    cell.style.setProperty("--heat", String(most > 0 ? values[i] / most : 0));
  });
}
