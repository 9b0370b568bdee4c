"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const config = { responsive: true, displayModeBar: false };
let data = null;

async function unpacked(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// What the theme of the page decides of a plot.
function themed(layout, isDark) {
  const ink = isDark ? "#c9d2dd" : "#3a4553", line = isDark ? "#2c3541" : "#e1e5ea";
  const axis = (given) => ({ gridcolor: line, zerolinecolor: line, linecolor: line, ...given });
  return {
    ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    hoverlabel: { align: "left", bgcolor: isDark ? "#2c3541" : "#ffffff", font: { color: isDark ? "#ffffff" : "#1b2430" } },
    xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), dragmode: "zoom",
  };
}

function draw(place, traces, layout, isDark) {
  return Plotly.react(place, traces, themed({ ...layout, autosize: true }, isDark), config);
}

function mapTraces() {
  const trace = data.figures.map.data[0], meta = trace.meta;
  const colour = document.getElementById("map-colour").value, size = document.getElementById("map-size").value;
  for (const word of ["formats", "errors", "times"]) document.getElementById("legend-" + word).hidden = word !== colour;
  const marker = { ...trace.marker, colors: meta[colour] };
  return [{ ...trace, values: meta.sizes[size], marker: marker }];
}

function drawActivation(isDark) {
  const place = document.getElementById("plot-activation");
  if (!place) return;
  const each = data.activations[Number(document.getElementById("activation").value)];
  const x = each.counts.map((_, i) => each.start + (i + 0.5) * each.width);
  const top = Math.max(...each.counts);
  const bars = { type: "bar", x: x, y: each.counts, width: each.width, marker: { color: "#3b82c4" }, name: "numbers",
    hovertemplate: "%{x:.4g}: %{y}<extra></extra>", showlegend: false };
  const palette = ["#e08e1b", "#1f9d7a", "#c95f9d", "#7f6fd0", "#c9a227", "#5bb0d9", "#d1495b"];
  const traces = [bars];
  Object.entries(each.ranges).forEach(([method, ends], i) => {
    const line = { color: palette[i % palette.length], width: 1.5, dash: "dot" };
    traces.push({ type: "scatter", mode: "lines", name: method, line: line,
      x: [ends[0], ends[0], null, ends[1], ends[1]], y: [0.5, top, null, 0.5, top],
      hovertemplate: method + " [" + ends[0].toPrecision(4) + ", " + ends[1].toPrecision(4) + "]<extra></extra>" });
  });
  const shapes = each.chosen === null ? [] : [{ type: "rect", xref: "x", yref: "paper", x0: each.chosen[0], x1: each.chosen[1],
    y0: 0, y1: 1, fillcolor: "#3b82c4", opacity: 0.12, line: { width: 1, color: "#3b82c4" }, layer: "below" }];
  draw(place, traces, {
    height: 380, margin: { l: 64, r: 16, t: 40, b: 48 }, bargap: 0, shapes: shapes, showlegend: true,
    xaxis: { title: { text: "value" } }, yaxis: { title: { text: "how many" }, type: "log" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
  }, isDark);
}

function drawAll(isDark) {
  for (const place of document.querySelectorAll(".plot[data-figure]")) {
    const figure = data.figures[place.dataset.figure];
    draw(place, place.dataset.figure === "map" ? mapTraces() : figure.data, figure.layout, isDark);
  }
  drawActivation(isDark);
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const keyOf = (row, i) => {
    const cell = row.cells[i];
    if (!cell.classList.contains("number")) return cell.textContent;
    return cell.dataset.value ? Number(cell.dataset.value) : NaN;
  };
  const sort = (i) => {
    const falls = heads[i].getAttribute("aria-sort") !== "descending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[i].setAttribute("aria-sort", falls ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [keyOf(row, i), row]);
    rows.sort(([a], [b]) => {
      if (typeof a === "string") return falls ? b.localeCompare(a) : a.localeCompare(b);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return falls ? b - a : a - b;
    });
    body.append(...rows.map(([, row]) => row));
  };
  heads.forEach((head, i) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(i));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(i); });
  });
  if (body.rows.length > 25) {
    const box = document.createElement("div");
    box.className = "scroll";
    table.before(box);
    box.append(table);
  }
}

function filterNodes() {
  const filter = document.getElementById("node-filter");
  if (!filter) return;
  const rows = [...document.querySelectorAll("#node-table tbody tr")].map((row) => [row.textContent.toLowerCase(), row]);
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(" ").filter(Boolean);
    for (const [text, row] of rows) row.hidden = !words.every((word) => text.includes(word));
  });
}

// Rows of long tables lie compressed in the page.
async function addRows() {
  for (const more of document.querySelectorAll("script.more")) {
    document.getElementById(more.dataset.table).tBodies[0].insertAdjacentHTML("beforeend", await unpacked(more));
  }
}

// What stands in the place of a part: tables with all their rows, controls that work, plots.
async function settle() {
  await addRows();
  document.querySelectorAll("#part table.sortable").forEach(sortable);
  filterNodes();
  data = JSON.parse(await unpacked(document.getElementById("packed-data")));
  drawAll(dark.matches);
  for (const id of ["map-colour", "map-size"]) {
    const control = document.getElementById(id);
    if (control) control.addEventListener("change", () => drawAll(dark.matches));
  }
  const activation = document.getElementById("activation");
  if (activation) activation.addEventListener("change", () => drawActivation(dark.matches));
}

// Of a folder: the part that the address names, else the first; addresses of other places leave the part as it is.
let shown = null;
async function showPart() {
  const parts = document.querySelectorAll("script.part"), named = /^#part-(\d+)$/.exec(location.hash);
  const next = named ? Number(named[1]) : shown === null ? 0 : shown;
  if (next === shown || next >= parts.length) return;
  const isFirst = shown === null;
  shown = next;
  const place = document.getElementById("part");
  delete document.documentElement.dataset.ready;
  place.innerHTML = await unpacked(parts[next]);
  document.querySelectorAll("#part-table tbody tr").forEach((row) => {
    const link = row.querySelector("a");
    if (link.hash === "#part-" + next) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  });
  await settle();
  if (named || !isFirst) place.scrollIntoView();
  document.documentElement.dataset.ready = "yes";
}

function failed(error) {
  const note = document.getElementById("no-plots");
  note.textContent = "The plots could not be drawn (" + error.message + "); browsers of 2023 and later draw them.";
  note.hidden = false;
}

(async () => {
  try {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("packed-plots"));
    document.head.append(script);
    const isFolder = document.querySelector("script.part") !== null;
    if (isFolder) {
      document.querySelectorAll("#part-table").forEach(sortable);
      await showPart();
      let last = Promise.resolve(); // one after the other: a part is whole before the next one takes its place
      addEventListener("hashchange", () => { last = last.then(showPart).catch(failed); });
    } else await settle();
    dark.addEventListener("change", () => drawAll(dark.matches));
    addEventListener("beforeprint", () => drawAll(false));
    addEventListener("afterprint", () => drawAll(dark.matches));
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    failed(error);
  }
})();
