// Draws the page's charts from the specifications that lie in it. Fetches nothing.
const drawn = JSON.parse(document.getElementById("charts").textContent);
const root = document.documentElement;
// The colours are of the style sheet; what is drawn needs their values.
function ofPage(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function isDark() {
  const theme = root.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// Colours that would be dim on a dark ground have a lighter one of the same hue.
function themed(spec) {
  if (!isDark()) return spec;
  return JSON.parse(Object.entries(drawn.on_dark).reduce((text, [from, to]) => text.replaceAll(from, to), JSON.stringify(spec)));
}

// Pixels below which a title in the middle would be cut off.
const NARROW = 480;

function config(width) {
  const ink = ofPage("ink");
  return {
    background: "transparent", font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null, continuousWidth: width, continuousHeight: root.dataset.paper ? 190 : 280 },
    axis: { labelColor: ink, titleColor: ink, gridColor: ofPage("grid"), domainColor: ofPage("line"), tickColor: ofPage("line"), labelFontSize: 12, labelSeparation: 6, titleFontSize: 13, titleFontWeight: "normal" },
    legend: { orient: "top", columns: Math.max(Math.floor(width / 260), 1), labelColor: ink, titleColor: ink, labelFontSize: 12, labelLimit: 0 },
    axisX: { titleAnchor: width < NARROW ? "end" : "middle" },
    text: { color: ink, fontSize: 11 },
    point: { size: 70, strokeWidth: 1.6 },
    concat: { spacing: 12 },
  };
}

// Labels take what they need; further drawings give the rest of the width to the axes.
async function draw(place, spec) {
  let width = place.clientWidth;
  for (let turn = 0; turn < 3; turn += 1) {
    const options = { ast: true, renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false }, config: config(width), tooltip: { theme: isDark() ? "dark" : "light" } };
    const { view } = await vegaEmbed(place, themed(spec), options);
    place.view = view;
    const over = place.querySelector("svg").getBoundingClientRect().width - place.clientWidth;
    if (Math.abs(over) < 2) return;
    width = Math.max(width - over - 1, 80);
  }
}

function cell(value) {
  const made = document.createElement("td");
  made.textContent = typeof value === "number" ? value.toFixed(2) : value ?? "–";
  made.className = typeof value === "number" ? "number" : "";
  return made;
}

// Restarts that are drawn alike share all of a specification but their data and the ends of the axis of time.
function timelineOf(restart) {
  const text = JSON.stringify(drawn.looks[restart.look]).replaceAll('["begin","end"]', JSON.stringify(restart.ends));
  return { ...JSON.parse(text), datasets: restart.datasets };
}

function showTimeline() {
  const place = document.getElementById("timeline-chart");
  const restart = drawn.timelines[document.getElementById("run").value];
  document.getElementById("timeline-shown").textContent = restart.label;
  document.getElementById("spans").replaceChildren(...restart.datasets.spans.map((span) => {
    const row = document.createElement("tr");
    row.append(...drawn.span_columns.map((name) => cell(span[name])));
    return row;
  }));
  return draw(place, timelineOf(restart));
}

async function drawAll() {
  for (const place of document.querySelectorAll("[data-chart]")) await draw(place, drawn.charts[place.dataset.chart]);
  if (drawn.timelines.length) await showTimeline();
  root.dataset.drawn = "yes";
}

let waiting;
function drawSoon() {
  root.dataset.drawn = "no";
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 100);
}

document.getElementById("theme").addEventListener("change", (event) => {
  root.dataset.theme = event.target.value;
  drawSoon();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
addEventListener("resize", drawSoon);

const run = document.getElementById("run");
run.replaceChildren(...drawn.timelines.map((restart, at) => new Option(restart.label, String(at))));
run.addEventListener("change", showTimeline);

// On paper nothing can be opened, colours are light, and charts are as wide as the text. Reasons stand in the audit.
const folded = () => document.querySelectorAll("details:not(#summary details, .chart details)");
let closed = [], theme = "";
addEventListener("beforeprint", () => {
  closed = [...folded()].filter((details) => !details.open);
  for (const details of closed) details.open = true;
  theme = root.dataset.theme || "";
  root.dataset.theme = "light";
  root.dataset.paper = "yes";
  // All that is drawn is here, so that this ends before the page is printed.
  drawAll().then(() => delete root.dataset.paper);
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
  root.dataset.theme = theme;
  drawSoon();
});

function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let folded = target && target.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
drawAll();
