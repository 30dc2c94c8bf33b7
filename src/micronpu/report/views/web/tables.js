// Tables that can be sorted by a click on the head of a column.
"use strict";
(() => {
  function sortable(table) {
    const body = table.tBodies[0];
    const given = [...body.rows].filter((row) => !row.classList.contains("texts"));
    const texts = new Map(given.map((row) => [row, row.nextElementSibling]));
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      if (!cell.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = cell.textContent;
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        // The first click puts the largest number or the first word on top; the third one restores the order of execution.
        const number = cell.classList.contains("number");
        const states = number ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
        const next = states[(states.indexOf(cell.getAttribute("aria-sort") || "none") + 1) % 3];
        [...table.tHead.rows[0].cells].forEach((c) => c.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", next);
        const value = (row) => row.cells[column].textContent;
        const worth = (row) => (number ? parseFloat(value(row).replace(/[^0-9.e-]/g, "")) || 0 : value(row));
        const order = (a, b) => (number ? worth(a) - worth(b) : worth(a).localeCompare(worth(b)));
        const sorted = next === "none" ? given : [...given].sort((a, b) => (next === "ascending" ? order(a, b) : order(b, a)));
        body.append(...sorted.flatMap((row) => (texts.get(row)?.classList.contains("texts") ? [row, texts.get(row)] : [row])));
        // The head of a group has nothing to say where its lines are scattered.
        for (const row of given) row.hidden = next !== "none" && row.classList.contains("steps");
      });
    });
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
})();
