"use strict";
// Everything that comes from elsewhere becomes text, never markup.
const at = (id) => document.getElementById(id);
const COLOURS = 8, DASHES = [[], [7, 3], [2, 2]];
const state = { now: { gpus: [], runs: [] }, points: [], hidden: new Set() };

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
const number = (value, digits = 0) =>
  typeof value === "number" ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
const gb = (value) => (typeof value === "number" ? number(value / 1e9, 1) : "–");
const precise = (value) => (typeof value === "number" ? Number(value.toPrecision(4)).toString() : "–");
const seconds = (value) => (typeof value !== "number" ? "" : value < 90 ? `${Math.round(value)} s` : `${Math.round(value / 60)} min`);

function fill(parent, key, items, build, update) {
  // Rows stay where they are, so that focus and selection do, too.
  const kept = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let child = kept.get(name);
    if (!child) { child = build(item); child.dataset.key = name; }
    kept.delete(name);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] || null);
    update(child, item);
  });
  kept.forEach((child) => child.remove());
}
function say(element, text) { if (element.textContent !== text) element.textContent = text; }
const place = (uuid) => Math.max(0, state.now.gpus.findIndex((gpu) => gpu.uuid === uuid));
// The style sheet's colours depend on the theme; a canvas needs their values.
function colour(name) {
  at("legend").style.color = `var(--${name})`;
  const value = getComputedStyle(at("legend")).color;
  at("legend").style.color = "";
  return value;
}
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
const span = (value) => (value < 5400 ? seconds(value) : `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`);

// One pace for a run's progress and its end: that of its finished passes, else of the pass under way.
function timeLeft(run) {
  const isPass = run.stage.startsWith("pass"), rest = run.left_s || 0;
  if (run.stopping) return run.left_s === null ? "" : `about ${span(rest)} left`;
  const done = run.parts.filter((part) => part.name.startsWith("pass") && part.end_s);
  const pace = done.length ? (done[done.length - 1].end_s - run.parts[0].begin_s) / done.length : isPass && run.left_s !== null ? run.elapsed_s + rest : null;
  if (pace === null || run.passes_left === null) return run.time_left;
  const left = rest + Math.max(0, run.passes_left - (isPass ? 1 : 0)) * pace;
  return `about ${span(left)} left, until about ${clock(state.now.at_s + left)}`;
}
const large = (text) => text.replace(/([\d,]+) bytes/g, (_, digits) => `${gb(Number(digits.replaceAll(",", "")))} GB`);
const used = (gpu) => Boolean(gpu.holder || gpu.occupied);

function showGpus() {
  const { gpus, links, leases } = state.now;
  at("no-gpus").hidden = gpus.length > 0;
  say(at("no-gpus"), "No GPU can be seen here.");
  fill(at("gpu-rows"), (gpu) => gpu.uuid, gpus, (gpu) => {
    const tile = make("article"), label = make("label"), box = make("input", undefined, { type: "checkbox", "aria-label": `show GPU ${gpu.index} in the chart` });
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? state.hidden.delete(gpu.uuid) : state.hidden.add(gpu.uuid); draw(); });
    const watts = make("p", undefined, { class: "watts" });
    watts.append(make("strong"), make("span"));
    label.append(box, " in the chart");
    tile.append(make("h3", undefined, { title: gpu.uuid }), watts, make("progress", undefined, { "aria-label": `power of GPU ${gpu.index}, of its limit` }),
      make("p", "", { class: "who" }), make("p", "", { class: "quiet" }), label);
    return tile;
  }, (tile, gpu) => {
    const [title, watts, bar, who, quiet] = tile.children, run = state.now.runs.find((one) => one.study === gpu.study);
    const readings = [[gpu.memory_used_bytes, `${gb(gpu.memory_used_bytes)} of ${gb(gpu.vram_total_bytes)} GB`], [gpu.busy_percent, `${number(gpu.busy_percent)} % busy`],
      [gpu.temperature_c, `${number(gpu.temperature_c)} °C`], [gpu.sm_clock_mhz, `SM ${number(gpu.sm_clock_mhz)} MHz`], [gpu.hbm_power_w, `HBM ${number(gpu.hbm_power_w)} W`]];
    tile.classList.toggle("free", !used(gpu));
    say(title, `${gpu.index} ${gpu.name}`);
    say(watts.children[0], `${number(gpu.power_w)} W`);
    say(watts.children[1], typeof gpu.power_limit_w === "number" ? ` of ${number(gpu.power_limit_w)} W` : "");
    bar.max = gpu.power_limit_w || 1; bar.value = gpu.power_w || 0;
    say(who, gpu.holder ? ["leased by " + gpu.user, run && timeLeft(run), run && `for ${run.experiment || gpu.study}`].filter(Boolean).join("; ") : large(gpu.occupied || "") || "free");
    who.title = gpu.holder || "";
    say(quiet, readings.filter(([value]) => typeof value === "number").map(([, text]) => text).join(" · "));
  });
  const others = Object.entries(leases || {}).filter(([name]) => !name.startsWith("GPU-")).map(([name, who]) => `the ${name} is leased by ${who}`);
  say(at("leases"), [...others, state.now.leases_unknown || ""].filter(Boolean).join("; "));
  const index = Object.fromEntries(gpus.map((gpu) => [gpu.uuid, gpu.index]));
  say(at("links"), links && links.length ? `Links: ${links.map((link) => `${index[link.a]}–${index[link.b]} ${link.label}`).join(", ")}` : "");
}

function showRuns() {
  const runs = state.now.runs;
  at("no-run").hidden = runs.length > 0;
  say(at("no-run"), `No run is under way in ${state.now.folder}.`);
  fill(at("runs"), (run) => run.study, runs, (run) => {
    const card = make("article");
    card.append(make("h3"), make("p", "", { class: "doing" }), make("progress", undefined, { max: "1", "aria-label": "share of the pass that is done" }),
      make("p", "", { class: "figures" }), make("p", "", { class: "left quiet" }), make("p", "", { class: "bad" }));
    return card;
  }, (card, run) => {
    const [title, doing, bar, figures, left, failed] = card.children;
    say(title, run.experiment ? `${run.experiment}` : run.study);
    const restart = run.restarts > 1 ? `, restart ${run.restart} of ${run.restarts}` : "";
    const share = run.left_s === 0 ? ", last requests" : typeof run.share === "number" ? `, ${number(run.share * 100)} % done` : "";
    say(doing, `${run.doing || "begins"}${restart}${share}${run.stopping ? "; stops after this pass" : ""}`);
    bar.hidden = !run.stage;
    if (typeof run.share === "number") bar.value = run.share; else bar.removeAttribute("value");
    const parts = [run.output_tokens ? `≤ ${number(run.output_tokens)} ${run.unit} so far` : "", run.tokens_per_s ? `${number(run.tokens_per_s, run.tokens_per_s < 100 ? 1 : 0)} ${run.unit}/s` : "",
      typeof run.power_w === "number" ? `${number(run.power_w)} W` : "", run.joules_per_token ? `${precise(run.joules_per_token)} J/${run.unit === "tokens" ? "token" : `unit of ${run.unit}`} (provisional)` : ""];
    say(figures, parts.filter(Boolean).join(", "));
    const stored = Object.entries(run.stored).map(([status, count]) => `${count} ${status}`).join(", ");
    say(left, [run.passes === null ? "" : `${run.passes_left} of ${run.passes} passes left${timeLeft(run) ? `, ${timeLeft(run)}` : ""}`, stored && `results: ${stored}`,
      `study ${run.study}`, run.user && `started by ${run.user}`].filter(Boolean).join("; "));
    say(failed, run.failures.join("; "));
  });
}

function draw() {
  const canvas = at("chart"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = 240;
  at("power").hidden = !state.points.length;
  if (document.hidden || !width) return;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), ink = colour("quiet");
  pen.scale(ratio, ratio); pen.font = "12px system-ui, sans-serif";
  const mode = document.querySelector("input[name=mode]:checked").value;
  const known = new Set(state.now.gpus.filter((gpu) => mode !== "used" || used(gpu)).map((gpu) => gpu.uuid));
  const told = [...new Set(state.points.flatMap(([, watts]) => Object.keys(watts)))];
  const uuids = told.filter((uuid) => !state.hidden.has(uuid) && (known.has(uuid) || !state.now.gpus.length));
  const sum = (watts) => uuids.reduce((total, uuid) => (total === null || typeof watts[uuid] !== "number" ? null : total + watts[uuid]), uuids.length ? 0 : null);
  const lines = mode === "sum" ? [["sum", 0, (watts) => sum(watts)]] : uuids.map((uuid) => [uuid, place(uuid), (watts) => watts[uuid]]);
  const end = state.now.at_s || Date.now() / 1000, begin = end - 600, left = 48, bottom = height - 20;
  const values = state.points.filter(([time]) => time >= begin).flatMap(([, watts]) => lines.map(([, , of]) => of(watts))).filter((value) => typeof value === "number");
  const most = Math.max(20, ...values), unit = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size * 4 >= most), top = step * 4;
  const x = (time) => left + ((time - begin) / 600) * (width - left - 4), y = (watts) => bottom - (watts / top) * (bottom - 8);
  pen.fillStyle = colour("raised");
  for (const run of state.now.runs) for (const part of run.parts) if (part.name.includes("pass") && (part.end_s || end) > begin)
    pen.fillRect(x(Math.max(begin, part.begin_s)), 4, Math.max(1, x(part.end_s || end) - x(Math.max(begin, part.begin_s))), bottom - 4);
  pen.strokeStyle = colour("grid"); pen.fillStyle = ink; pen.lineWidth = 1;
  for (let watts = 0; watts <= top; watts += step) {
    pen.beginPath(); pen.moveTo(left, y(watts)); pen.lineTo(width - 4, y(watts)); pen.stroke();
    pen.fillText(`${Math.round(watts)} W`, 2, y(watts) + 4);
  }
  for (let minute = 10; minute >= 0; minute -= width < 480 ? 5 : 2) pen.fillText(minute ? `−${minute} min` : "now", Math.min(width - 32, x(end - minute * 60)), height - 5);
  pen.lineWidth = 1.8;
  for (const [, nth, of] of lines) {
    pen.strokeStyle = colour(`gpu${nth % COLOURS}`); pen.setLineDash(DASHES[nth % DASHES.length]); pen.beginPath();
    let before = null;
    for (const [time, watts] of state.points) {
      const value = of(watts);
      if (time < begin || typeof value !== "number") { before = null; continue; }
      before !== null && time - before < 15 ? pen.lineTo(x(time), y(value)) : pen.moveTo(x(time), y(value));
      before = time;
    }
    pen.stroke();
  }
  const name = (uuid) => { const gpu = state.now.gpus.find((one) => one.uuid === uuid); return gpu ? `GPU ${gpu.index}` : uuid; };
  fill(at("legend"), ([key]) => key, lines, () => { const entry = make("span"); entry.append(make("i"), make("b")); return entry; }, (entry, [key, nth, of]) => {
    const last = state.points.length ? of(state.points[state.points.length - 1][1]) : null;
    const [line, text] = entry.children;
    line.style.color = `var(--gpu${nth % COLOURS})`;
    say(line, ["━", "╍", "┅"][nth % DASHES.length]);
    say(text, ` ${key === "sum" ? "sum" : name(key)} ${number(last)} W`);
  });
}

function show(now) {
  state.now = now;
  if (Object.keys(now.power_w).length) state.points = [...state.points, [now.at_s, now.power_w]].slice(-700);
  say(at("host"), now.host);
  at("trouble").hidden = !now.trouble;
  say(at("trouble"), (now.trouble || "").replaceAll("`", ""));
  showAll();
}
function showAll() {
  // Before the first update nothing is known: not that there is no run, either.
  if (document.hidden || !state.now.at_s) return;
  showRuns(); showGpus(); draw();
}

at("theme").addEventListener("change", () => { document.documentElement.dataset.theme = at("theme").value; draw(); });
document.querySelectorAll("input[name=mode]").forEach((choice) => choice.addEventListener("change", draw));
document.addEventListener("visibilitychange", showAll);
window.addEventListener("resize", draw);
// Paper is light, and says of when it is.
window.addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  say(at("printed"), `as of ${new Date((state.now.at_s || 0) * 1000).toLocaleString("sv")}`);
  draw();
});
window.addEventListener("afterprint", () => at("theme").dispatchEvent(new Event("change")));
let heard = Date.now(), source = null;
// What is shown stays, and says of when it is.
function lost(text) {
  const since = state.now.at_s ? `; shown is as of ${new Date(state.now.at_s * 1000).toLocaleTimeString([], { hour12: false })}` : "";
  say(at("link"), text + since);
  document.body.classList.add("stale");
}
function listen() {
  source = new EventSource("/events");
  source.addEventListener("history", (event) => {
    heard = Date.now();
    state.points = JSON.parse(event.data).points;
    say(at("link"), "live");
    document.body.classList.remove("stale");
  });
  source.addEventListener("now", (event) => {
    heard = Date.now();
    show(JSON.parse(event.data));
  });
  source.addEventListener("error", () => lost("not connected; trying again"));
}
setInterval(() => {
  if (Date.now() - heard < 20000) return;
  // A server that hangs, or that had no room for this viewer, after which the browser does not ask again.
  lost("no news; trying again");
  source.close();
  heard = Date.now();
  listen();
}, 5000);
listen();
