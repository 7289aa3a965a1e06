"use strict";
// Draws the page's charts from the figures that lie in it. Fetches nothing; every text from a result is set as text.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  // Named one by one: what plotly.js offers by itself may send figures elsewhere.
  const buttons = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const settings = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  const spanColours = {
    launch: "rgba(150,150,150,0.22)", load: "rgba(86,180,233,0.25)", idle: "rgba(120,120,120,0.10)",
    "warm-up": "rgba(230,159,0,0.20)", pass: "rgba(0,158,115,0.22)", other: "rgba(204,121,167,0.20)",
  };
  const drawn = new Map();

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  function axes(layout) {
    return Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
  }

  function themed(layout) {
    const made = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left" },
      hovermode: "closest",
      margin: { l: 60, r: 12, t: 16, b: 50, ...layout.margin },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("quiet"), activecolor: colour("link") },
      legend: { orientation: "h", traceorder: "normal", yanchor: "bottom", y: 1.01, x: 0, ...layout.legend },
      showlegend: true,
    };
    for (const key of axes(layout)) {
      made[key] = {
        gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true,
        ...layout[key],
      };
    }
    return made;
  }

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function lightened(trace) {
    const other = (part) => (part && part.color ? { ...part, color: figures.on_dark[part.color] || part.color } : part);
    const marker = trace.marker && { ...other(trace.marker), line: other(trace.marker.line) };
    return { ...trace, ...(trace.line && { line: other(trace.line) }), ...(marker && { marker }) };
  }

  // One chart of the page; drawing it again is how it takes another theme.
  function draw(place, make) {
    drawn.set(place, make);
    const { data, layout } = make();
    place.style.height = `${layout.height}px`;
    return Plotly.react(place, isDark() ? data.map(lightened) : data, themed(layout), settings);
  }

  function redrawAll() {
    for (const [place, make] of drawn) draw(place, make);
  }

  function drawCharts() {
    for (const place of document.querySelectorAll("[data-chart]")) {
      const spec = figures.charts[place.dataset.chart];
      const logarithmic = document.querySelector(`[data-log="${place.dataset.chart}"]`);
      const make = () => ({ data: spec.data, layout: withScale(spec.layout, logarithmic && logarithmic.checked) });
      if (logarithmic) logarithmic.addEventListener("change", () => draw(place, make));
      draw(place, make);
    }
  }

  // By itself plotly.js labels 50 as "5" between 10 and 100.
  const steps = Array.from({ length: 16 }, (_, at) => [1, 2, 5].map((digit) => digit * 10 ** (at - 7))).flat();
  const decades = {
    tickvals: steps, ticktext: steps.map((value) => value.toLocaleString("en", { maximumSignificantDigits: 1 })),
  };

  function withScale(layout, logarithmic) {
    if (!logarithmic) return layout;
    const made = { ...layout };
    for (const key of axes(layout)) made[key] = { ...(layout[key].tickvals ? {} : decades), ...layout[key], type: "log", rangemode: "normal" };
    return made;
  }

  const kindOf = (name) => (name.startsWith("idle") ? "idle" : name);

  function spanKind(span) {
    return span[1] !== null ? "pass" : kindOf(span[0]) in spanColours ? kindOf(span[0]) : "other";
  }

  // plotly.js takes some tags for markup.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  function bands(restart, length) {
    return restart.spans.map((span) => ({
      type: "rect", xref: "x", yref: "paper", x0: span[2], x1: span[3], y0: 0, y1: 1, layer: "below",
      fillcolor: spanColours[spanKind(span)], line: { width: 0 },
      label: span[3] - span[2] > 0.03 * length
        ? { text: span[1] !== null ? `pass ${span[1] + 1}` : plain(kindOf(span[0])), textposition: "top center", font: { size: 11, color: colour("quiet") } }
        : undefined,
    }));
  }

  const dashes = [
    "dot", "dash", "dashdot", "longdash", "longdashdot", "3px,9px", "9px,3px,3px,3px,3px,3px", "15px,3px,3px,3px,3px,3px",
  ];

  // What was not used is grey, and of each grey has a dash of its own.
  function powerLines(restart, summed) {
    const hasSum = restart.power.some((line) => line.sum);
    const kinds = [
      [restart.power.filter((line) => (summed && hasSum ? line.sum : line.used)), "", figures.palette, ["solid", ...dashes]],
      [restart.power.filter((line) => !line.sum && !line.used), ", not used", ["#888888"], dashes],
      [restart.host, " (host, RAPL)", ["#555555"], dashes],
    ];
    return kinds.flatMap(([lines, said, colours, shapes]) => lines.map((line, at) => ({
      type: "scatter", mode: "lines", x: line.x, y: line.y, name: line.name + said,
      line: {
        shape: line.source === "counter" ? "hv" : "linear", width: 1.4,
        color: colours[at % colours.length], dash: shapes[Math.floor(at / colours.length) % shapes.length],
      },
      hovertemplate: "%{y:.1f} W at %{x:.2f} s<extra>%{fullData.name}</extra>",
    })));
  }

  // A restart may serve other experiments between its load and its passes: by default that is not shown.
  function shownRange(restart, whole) {
    const end = Math.max(...restart.spans.map((span) => span[3]));
    const measured = restart.spans.filter((span) => span[1] !== null || span[0] === "warm-up");
    const from = measured.length ? Math.min(...measured.map((span) => span[2])) - 2 : 0;
    return whole || from < 0 ? [0, end] : [from, end];
  }

  function timelineFigure(restart, summed, whole) {
    const range = shownRange(restart, whole);
    const data = powerLines(restart, summed);
    const hasPower = data.length > 0;
    const tokens = restart.tokens;
    const layout = {
      xaxis: { title: { text: "seconds since the restart's first span" }, range },
      shapes: bands(restart, range[1] - range[0]), height: hasPower && tokens ? 560 : 380,
    };
    if (hasPower) layout.yaxis = { title: { text: "power, W" }, rangemode: "tozero", domain: tokens ? [0.38, 1] : [0, 1] };
    if (tokens) {
      layout[hasPower ? "yaxis2" : "yaxis"] = {
        title: { text: "output tokens/s" }, rangemode: "tozero", domain: hasPower ? [0, 0.3] : [0, 1],
      };
      if (hasPower) layout.xaxis.anchor = "y2";
      data.push({
        type: "scatter", mode: "lines", x: tokens.x, y: tokens.y, name: tokens.name, yaxis: hasPower ? "y2" : "y",
        line: { shape: "hv", width: 1.2, color: figures.palette[1] }, connectgaps: false,
        hovertemplate: "%{y:,.1f} tokens/s at %{x:.2f} s<extra></extra>",
      });
    }
    return { data, layout };
  }

  function cell(text, kind) {
    const made = document.createElement("td");
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }

  function listSpans(restart) {
    const rows = restart.spans.map((span) => {
      const lasts = span[3] - span[2];
      const row = document.createElement("tr");
      const name = span[1] !== null ? `pass ${span[1] + 1}` : span[0];
      const joules = span[4];
      row.append(
        cell(name), cell(span[2].toFixed(2), "number"), cell(lasts.toFixed(2), "number"),
        cell(joules === null ? "–" : joules.toFixed(1), "number"),
        cell(joules === null || lasts === 0 ? "–" : (joules / lasts).toFixed(1), "number"),
      );
      return row;
    });
    document.getElementById("spans").replaceChildren(...rows);
  }

  function listKinds(restart) {
    const kinds = [...new Set(restart.spans.map(spanKind))];
    document.getElementById("span-key").replaceChildren(...kinds.map((kind) => {
      const made = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.style.background = spanColours[kind];
      made.append(swatch, kind);
      return made;
    }));
  }

  function choices(select, texts) {
    select.replaceChildren(...texts.map((text, at) => new Option(text, String(at))));
  }

  function startTimelines() {
    const form = document.getElementById("timeline-controls");
    if (!figures.runs.length) {
      form.hidden = true;
      document.getElementById("no-timeline").hidden = false;
      document.getElementById("timeline-chart").hidden = true;
      return;
    }
    const run = document.getElementById("run");
    const restart = document.getElementById("restart");
    const place = document.getElementById("timeline-chart");
    const current = () => figures.runs[run.value].restarts[restart.value];
    const chosen = (name) => form.querySelector(`input[name=${name}]:checked`);
    const saidBy = (input) => input.labels[0].textContent.trim();
    const show = () => {
      const summed = chosen("gpus").value === "sum";
      const whole = chosen("part").value === "whole";
      const hasSum = current().power.some((line) => line.sum);
      document.getElementById("gpus-shown").hidden = !hasSum;
      const named = [run.selectedOptions[0].text, `restart ${restart.selectedOptions[0].text}`];
      document.getElementById("timeline-shown").textContent =
        [...named, ...(hasSum ? [`GPUs ${saidBy(chosen("gpus"))}`] : []), saidBy(chosen("part"))].join(", ");
      listSpans(current());
      listKinds(current());
      draw(place, () => timelineFigure(current(), summed, whole));
    };
    const showRun = () => {
      choices(restart, figures.runs[run.value].restarts.map((one) => one.label));
      show();
    };
    choices(run, figures.runs.map((one) => one.label));
    run.addEventListener("change", showRun);
    form.addEventListener("change", (event) => { if (event.target !== run) show(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    showRun();
  }

  function startTheme() {
    document.getElementById("theme").addEventListener("change", (event) => {
      if (event.target.value === "auto") delete root.dataset.theme;
      else root.dataset.theme = event.target.value;
      redrawAll();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  }

  // Paper is white, and nobody can open what is folded there: findings and differences are unfolded.
  function startPrinting() {
    let theme;
    let unfolded = [];
    addEventListener("beforeprint", () => {
      theme = root.dataset.theme;
      root.dataset.theme = "light";
      unfolded = [...document.querySelectorAll("#audit details:not([open]), #environment details:not([open])")];
      for (const details of unfolded) details.open = true;
      redrawAll();
    });
    addEventListener("afterprint", () => {
      if (theme === undefined) delete root.dataset.theme;
      else root.dataset.theme = theme;
      for (const details of unfolded) details.open = false;
      redrawAll();
    });
  }

  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  }

  startTheme();
  drawCharts();
  startTimelines();
  startPrinting();
  addEventListener("hashchange", openTarget);
  openTarget();
})();
