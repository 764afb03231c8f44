"use strict";
// Rows of methods whose names don't contain the text are hidden.
Page.$("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("tr[data-method]")) {
    row.hidden = !row.dataset.method.toLowerCase().includes(wanted);
  }
});
