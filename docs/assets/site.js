// Browsers allow search on pages from a server alone, so a page from a file says so.
if (location.protocol === "file:") {
  const note = document.createElement("span");
  note.className = "search-note";
  note.textContent = "Search needs a server: python3 -m http.server";
  document.querySelector(".md-header__inner").append(note);
}
