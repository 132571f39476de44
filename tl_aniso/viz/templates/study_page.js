// The page's controls: what is chosen, what is drawn from it, and the tables beside.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const theme = () => (dark.matches && !printing ? { ink: "#e6e8eb", tint: "#1e232b" } : { ink: "#1b1f24", tint: "#ffffff" });

const names = header.names;
const nameOf = (control) => names.controls[control] ?? control;
const measureName = (measure) => names.measures[measure] ?? measure;
const known = Object.keys(names.controls);
const rankOf = (control) => (control === "none" ? -2 : control === "normal" ? -1 : known.indexOf(control));
const others = known.filter((c) => c !== "none" && c !== "normal");
// Colour, dash and marker of a control are the same in every figure; the sixth is that of "before".
const indexOf = (control) => {
  if (control === "none") return 0;
  if (control === "normal") return 1;
  if (control === "before") return 5;
  const at = others.indexOf(control);
  return at < 3 ? at + 2 : at + 3;
};
header.models.forEach((model) => model.checkpoints.forEach((p) => {
  p.label = p.step === null ? short(p.revision || "unknown", 20) : String(p.step);
}));

let numbers = null;
const choice = (id) => element(`choose-${id}`).value;
const fill = (id, options, wanted) => {
  const select = element(`choose-${id}`);
  const before = wanted ?? select.value;
  select.replaceChildren(...options.map(([value, text]) => {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = short(text, 70);
    option.title = text.length > 70 ? text.slice(0, 400) : "";
    return option;
  }));
  select.value = options.some(([value]) => String(value) === before) ? before : String(options[0]?.[0] ?? "");
};
const kindOf = (site) => site.replace(/^blocks\.\d+\./, "").replace(/\.head\.\d+$|\[\d+\]$/, "");
const unique = (list) => [...new Set(list)];
const GRADIENTS = { weight: "weight gradients", activation: "activation gradients", none: "activations" };

const blocksOf = (model) => header.blocks.map((block, at) => ({ block, at })).filter(({ block }) => block.model === model);

// Every list holds what the choices before it leave; a choice that is still there stays.
const fillAll = (wanted = {}) => {
  fill("model", header.models.map((model, at) => [at, model.name]), wanted.model);
  const ofModel = blocksOf(Number(choice("model")));
  fill("gradient", unique(ofModel.map(({ block }) => block.gradient)).map((g) => [g, GRADIENTS[g] ?? g]), wanted.gradient);
  const ofGradient = ofModel.filter(({ block }) => block.gradient === choice("gradient"));
  fill("unit", unique(ofGradient.map(({ block }) => block.unit)).map((u) => [u, names.units[u] ?? (u || "not told")]), wanted.unit);
  const { block } = chosenBlock();
  fill("measure", Object.keys(block.series).sort((a, b) => Object.keys(names.measures).indexOf(a) - Object.keys(names.measures).indexOf(b)).map((m) => [m, measureName(m)]), wanted.measure);
  const groups = names.panels.filter((g) => block.groups.includes(g)).concat(block.groups.filter((g) => !names.panels.includes(g)));
  const kinds = unique(block.sites.map(kindOf));
  fill("sites", [...groups.map((g) => [`group:${g}`, `${g} (group)`]), ...kinds.map((k) => [`kind:${k}`, k]), ["all:", "all sites"]], wanted.sites);
  const slots = unique(block.slots).sort((a, b) => a - b);
  fill("rank", slots.map((slot) => {
    const ranks = block.ranks.filter((_, at) => block.slots[at] === slot);
    const [low, high] = [Math.min(...ranks), Math.max(...ranks)];
    return [slot, `${low === high ? `k = ${low}` : `k = ${low} to ${high}`}${slots.length > 1 && slot === 0 ? ", highest" : ""}`];
  }), wanted.rank);
  const controls = unique(Object.values(block.series).flatMap((of) => Object.keys(of))).filter((c) => c !== "none").sort((a, b) => rankOf(a) - rankOf(b));
  fill("control", [["", "every control"], ...controls.map((c) => [c, nameOf(c)])], wanted.control);
  const layers = unique(block.layers.filter((l) => l !== null)).sort((a, b) => a - b);
  fill("layer", [["", "all layers"], ...layers.map((l) => [String(l), `layer ${l}`])], wanted.layer);
  const points = header.models[block.model].checkpoints;
  const slider = element("choose-step");
  const last = Number(slider.max);
  slider.max = points.length - 1;
  if (wanted.step !== undefined || last !== points.length - 1) slider.value = wanted.step ?? points.length - 1;
  tellStep(points);
};
const tellStep = (points) => {
  const point = points[Number(choice("step"))];
  const text = point.step === null ? point.label : `${point.label}${point.phase ? ` (${point.phase})` : ""}`;
  element("step-text").textContent = text;
  element("choose-step").setAttribute("aria-valuetext", `step ${text}`);
};
const chosenBlock = () => blocksOf(Number(choice("model"))).find(({ block }) => block.gradient === choice("gradient") && block.unit === choice("unit"));

const globOf = (pattern) => new RegExp(`^${[...pattern].map((c) => (c === "*" ? ".*" : c === "?" ? "." : c.replace(/[.+^${}()|[\]\\/]/g, "\\$&"))).join("")}$`, "su");
const chosenRows = (block) => {
  const pattern = element("choose-pattern").value.trim();
  const at = choice("sites").indexOf(":");
  const [how, what] = [choice("sites").slice(0, at), choice("sites").slice(at + 1)];
  const matches = pattern
    ? (row) => globOf(pattern).test(block.sites[row])
    : (row) => how === "all" || (how === "group" ? block.groups[block.group[row]] === what : kindOf(block.sites[row]) === what);
  return block.sites.map((_, row) => row).filter((row) => block.slots[row] === Number(choice("rank")) && matches(row));
};

// What a curve is at some rows and a checkpoint: its mean, how many sites it is of, and ends where they mean something.
const readerOf = (at, block, curve) => {
  const nPoints = header.models[block.model].checkpoints.length;
  const field = (name) => (name ? numbers.field(at, curve.measure, curve.control, name) : null);
  const [values, low, high, sd] = [field(curve.field), field(curve.low), field(curve.high), field(curve.sd)];
  const geometric = GEOMETRIC.includes(curve.measure);
  return (rows, point) => {
    const held = rows.filter((row) => curve.groups.includes(block.group[row]));
    const found = meanOf(values, held, point, nPoints, geometric);
    if (sd) {
      const spread = meanOf(sd, held.filter((row) => Number.isFinite(values[row * nPoints + point])), point, nPoints, false).value;
      Object.assign(found, { low: found.value - 2 * spread, high: found.value + 2 * spread, what: "2 s.d." });
    } else if (low && high && held.length === 1) {
      const cell = held[0] * nPoints + point;
      Object.assign(found, { low: low[cell], high: high[cell], what: "95%" });
    }
    if (Number.isFinite(found.low)) found.ends = ` (${digits(found.low)} to ${digits(found.high)})`;
    return found;
  };
};
const shownCurves = (block, measure, control) => curvesOf(block.series, measure).filter((curve) => {
  if (!control || curve.control === control) return true;
  if (measure === "excess" || measure === "delta_isoscore_star") return false;
  return curve.effect || curve.as === "before" || (curve.as ?? curve.control) === "normal";
});
const placeOf = (block, row) => (block.layers[row] === null ? block.sites[row].split(".")[0] : String(block.layers[row]));
const placesOf = (block, rows) => unique(rows.map((row) => placeOf(block, row))).sort((a, b) => {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b) : x - y;
});
const byStep = (points) => ({ ...stepAxis(points), labels: points.map((p) => p.label), name: "step" });
const byLayer = (labels) => ({ xs: labels.map(plain), labels, name: "layer", axis: { type: "category", title: { text: "layer" }, tickangle: 0 } });

const siteMarks = (at, block, rows, curve, point) => {
  const nPoints = header.models[block.model].checkpoints.length;
  const of = (name) => (name ? numbers.field(at, curve.measure, curve.control, name) : null);
  const [values, low, high] = [of(curve.field), of(curve.low), of(curve.high)];
  const cells = rows.map((row) => [row, row * nPoints + point]).filter(([, cell]) => Number.isFinite(values[cell]));
  const marks = {
    x: cells.map(([row]) => plain(placeOf(block, row))), y: cells.map(([, cell]) => values[cell]),
    mode: "markers", type: "scatter", hoverinfo: "text",
    text: cells.map(([row, cell]) => plain(`${short(block.sites[row], 60)}: ${digits(values[cell])}${low && Number.isFinite(low[cell]) ? ` (95% ${digits(low[cell])} to ${digits(high[cell])})` : ""}`)),
    name: `single sites${low ? ", 95%" : ""}${missingNote(rows.length - cells.length, rows.length)}`,
    marker: { size: 6, symbol: "circle-open", color: hueAt(indexOf(curve.as ?? curve.control)) },
    ends: low ? cells.flatMap(([, cell]) => [low[cell], high[cell]]) : [],
  };
  if (low) {
    const gap = (a, b) => (Number.isFinite(a - b) ? Math.abs(a - b) : 0);
    marks.error_y = { type: "data", symmetric: false, thickness: 1, width: 2, array: cells.map(([, c]) => gap(high[c], values[c])), arrayminus: cells.map(([, c]) => gap(values[c], low[c])) };
  }
  return marks;
};

const isotropyOf = () => (choice("measure") === "isoscore" ? "isoscore" : "isoscore_star");
const stepwise = (measure) => (context) => {
  const { at, block, rows, points, narrow, control } = context;
  const layer = choice("layer");
  const chosen = layer === "" ? rows : rows.filter((row) => String(block.layers[row]) === layer);
  const curves = shownCurves(block, measure(), control).map((curve) => ({ ...curve, read: readerOf(at, block, curve) }));
  return curveFigure({ measure: measure() }, byStep(points), curves, (curve, i) => curve.read(chosen, i), narrow);
};
const layerwise = (measure) => (context) => {
  const { at, block, rows, narrow, control, point } = context;
  const labels = placesOf(block, rows);
  const within = labels.map((label) => rows.filter((row) => placeOf(block, row) === label));
  const curves = shownCurves(block, measure(), control).map((curve) => ({ ...curve, read: readerOf(at, block, curve) }));
  const single = curves.filter((curve) => curve.effect);
  const several = within.some((found) => found.length > 1);
  const extra = several && single.length === 1 ? [siteMarks(at, block, rows, single[0], point)] : [];
  return curveFigure({ measure: measure() }, byLayer(labels), curves, (curve, i) => curve.read(within[i], point), narrow, extra);
};
const heat = ({ at, block, rows, points, narrow, width, control }) => {
  const inBlocks = rows.filter((row) => block.layers[row] !== null);
  const labels = placesOf(block, inBlocks);
  const within = labels.map((label) => inBlocks.filter((row) => placeOf(block, row) === label));
  const measure = choice("measure");
  // R of the normal plane is 1 by its definition: a map of it would be of one colour.
  const curves = shownCurves(block, measure, control).filter((c) => measure !== "r_energy" || c.effect || c.control !== "normal");
  const read = curves.map((curve) => ({ ...curve, read: readerOf(at, block, curve) }));
  return heatFigure({ measure }, { labels }, points, read, (curve, place, point) => curve.read(within[place], point), narrow, width);
};
const compare = ({ control, narrow }) => {
  const measure = choice("measure");
  const shown = [];
  header.models.forEach((model, number) => {
    const found = blocksOf(number).find(({ block }) => block.gradient === choice("gradient") && block.unit === choice("unit"));
    if (!found || !found.block.series[measure]) return;
    const rows = chosenRows(found.block);
    const curves = curvesOf(found.block.series, measure);
    // Of R the normal plane's is 1 by definition, so another control says more, if there is one.
    const beside = unique(curves.filter((c) => c.control !== "none" && c.as !== "before").map((c) => c.control));
    const against = control || ["shuffled_labels", "shuffled_g", ...beside.filter((c) => c !== "normal"), "normal"].find((c) => beside.includes(c));
    const effect = curves.filter((c) => c.effect && (curves.filter((o) => o.effect).length === 1 || c.control === against))[0];
    const other = curves.find((c) => !c.effect && (c.as ?? c.control) === against);
    [effect, other].filter(Boolean).forEach((curve) => shown.push({ curve, rows, number, model, read: readerOf(found.at, found.block, curve) }));
  });
  const steps = unique(shown.flatMap(({ model }) => model.checkpoints.map((p) => p.label)));
  const points = unique(shown.map(({ model }) => model)).flatMap((m) => m.checkpoints);
  const sorted = steps.map((label) => points.find((p) => p.label === label)).sort((a, b) => (a.step ?? 0) - (b.step ?? 0));
  const places = byStep(sorted);
  const curves = shown.map((one) => ({ ...one.curve, ...one, label: `${short(one.model.name, 30)}: ${one.curve.label}`, as: "none" }));
  const absent = { value: NaN, known: 0, n: 0 };
  const figure = curveFigure({ measure }, places, curves, (curve, i) => {
    const point = curve.model.checkpoints.findIndex((p) => p.label === sorted[i].label);
    return point < 0 ? absent : { ...curve.read(curve.rows, point), low: NaN, high: NaN };
  }, narrow);
  figure.data.forEach((trace, i) => {
    const { number, curve } = shown[i];
    trace.connectgaps = false;
    // A model's own steps only: between those of others there is nothing of it.
    const own = trace.x.map((_, j) => shown[i].model.checkpoints.some((p) => p.label === sorted[j].label));
    ["x", "y", "text"].forEach((key) => { trace[key] = trace[key].filter((_, j) => own[j]); });
    trace.line = { color: hueAt(number), width: curve.effect ? 2.5 : 1.5, dash: curve.effect ? "solid" : "dot" };
    trace.marker = { color: hueAt(number), size: 7, symbol: SYMBOLS[number % SYMBOLS.length] + (curve.effect ? "" : "-open") };
  });
  return figure;
};
const FIGURES = {
  steps: stepwise(() => choice("measure")),
  layers: layerwise(() => choice("measure")),
  map: heat,
  "isotropy-steps": stepwise(isotropyOf),
  "isotropy-layers": layerwise(isotropyOf),
  delta: layerwise(() => "delta_isoscore_star"),
  compare,
};
const OF_STEP = ["layers", "isotropy-layers", "delta"];

const cellOf = (found) => {
  const cell = document.createElement("td");
  if (!found.n) { cell.textContent = "–"; return cell; }
  cell.textContent = digits(found.value);
  cell.dataset.value = String(found.value);
  const notes = [found.ends?.trim(), found.known < found.n ? `${found.n - found.known} of ${found.n} missing` : ""].filter(Boolean);
  if (notes.length) cell.append(Object.assign(document.createElement("small"), { textContent: notes.join("; ") }));
  return cell;
};
const heading = (text, scope) => Object.assign(document.createElement("th"), { scope, textContent: short(text, 80) });
const writeTable = (id, { stub, columns, rows }, caption) => {
  const table = element(`${id}-table`);
  const head = document.createElement("thead");
  const body = document.createElement("tbody");
  head.append(document.createElement("tr"));
  head.firstChild.append(heading(stub, "col"), ...columns.map((column) => heading(column, "col")));
  (typeof rows === "function" ? rows() : rows).forEach((row) => {
    const line = document.createElement("tr");
    line.append(heading(row.heading, "row"), ...row.cells.map(cellOf));
    body.append(line);
  });
  table.replaceChildren(Object.assign(document.createElement("caption"), { textContent: caption }), head, body);
};
const OPTIONS = { displaylogo: false, responsive: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
const pause = () => new Promise((done) => { setTimeout(done, 0); });
const showFigure = async (id, figure, caption) => {
  const plot = element(`figure-${id}`);
  const details = element(`${id}-numbers`);
  const counted = typeof figure.table.rows === "function" ? null : figure.table.rows.flatMap((row) => row.cells);
  const cells = counted ?? figure.table.rows().flatMap((row) => row.cells);
  const n = cells.reduce((sum, f) => sum + f.n, 0);
  const missing = cells.reduce((sum, f) => sum + f.n - f.known, 0);
  element(`${id}-missing`).textContent = n === 0 ? "The study has no such numbers for what is chosen." : missing ? `${missing} of ${n} values are missing: left out of means, drawn as gaps or crosses, never as 0.` : "No value is missing.";
  plot.hidden = n === 0;
  details.hidden = n === 0;
  const drawn = figure.data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
  plot.setAttribute("aria-label", `${caption}. ${unique(drawn).slice(0, 12).join("; ")}. The table of numbers that follows holds every value.`);
  plot.style.minHeight = `${figure.layout.height}px`;
  if (n) await Plotly.react(plot, figure.data, { ...figure.layout, width: plot.clientWidth || undefined }, OPTIONS);
  plot.dataset.drawn = String(n > 0);
  details.write = () => writeTable(id, figure.table, caption);
  if (details.open) details.write();
  else element(`${id}-table`).replaceChildren();
  return missing;
};

let turn = 0;
const redraw = async (ids = Object.keys(FIGURES)) => {
  turn += 1;
  const mine = turn;
  const { at, block } = chosenBlock();
  await numbers.load(block.model);
  if (turn !== mine) return;
  const rows = chosenRows(block);
  const points = header.models[block.model].checkpoints;
  tellStep(points);
  const about = [header.models[block.model].name, GRADIENTS[block.gradient] ?? block.gradient, element("choose-pattern").value.trim() || element("choose-sites").selectedOptions[0].textContent].map((t) => short(t, 60)).join(", ");
  let missing = 0;
  for (const id of ids) {
    if (id === "compare") await numbers.all();
    if (turn !== mine) return;
    const width = element("figures").clientWidth;
    const context = { at, block, rows, points, width, narrow: width < 520, control: choice("control"), point: Number(choice("step")) };
    const what = element(`${id}-title`).textContent;
    const where = OF_STEP.includes(id) ? `, step ${element("step-text").textContent}` : "";
    missing += await showFigure(id, FIGURES[id](context), `${what}: ${about}${where}`);
    document.documentElement.dataset.interactive = "true";
    await pause();
    if (turn !== mine) return; // something else was chosen meanwhile
  }
  const said = rows.length ? `${rows.length} ${rows.length === 1 ? "site" : "sites"} of ${about}. ${measureName(choice("measure"))}.${missing ? ` ${missing} values missing.` : ""}` : "No site matches the pattern.";
  element("live").textContent = `Figures redrawn: ${said}`;
  document.documentElement.dataset.redraws = String(Number(document.documentElement.dataset.redraws ?? 0) + 1);
};

const tellFault = (error) => {
  element("figures-fault").textContent = `The figures could not be drawn: ${error.message}`;
  element("figures-fault").hidden = false;
};
const again = (ids) => redraw(ids).catch(tellFault);

const wire = () => {
  ["model", "gradient", "unit", "measure", "sites", "rank", "control", "layer"].forEach((id) => {
    element(`choose-${id}`).addEventListener("change", () => { fillAll(); again(); });
  });
  let waiting = null;
  element("choose-pattern").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(again, 250); });
  element("choose-step").addEventListener("input", () => {
    tellStep(header.models[chosenBlock().block.model].checkpoints);
    clearTimeout(waiting);
    waiting = setTimeout(() => again(OF_STEP), 40);
  });
  element("filters").addEventListener("submit", (event) => event.preventDefault());
  document.querySelectorAll("details.numbers").forEach((details) => details.addEventListener("toggle", () => details.open && details.write?.()));
  dark.addEventListener("change", () => again());
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 150);
  });
  // Paper is light and narrow: plots are drawn for it before the page is laid out for print.
  const plots = () => [...document.querySelectorAll(".plot")].filter((plot) => plot.dataset.drawn === "true");
  const repaint = (wide) => plots().forEach((plot) => Plotly.relayout(plot, { width: wide ?? plot.clientWidth, "font.color": theme().ink }));
  window.addEventListener("beforeprint", () => { printing = true; repaint(680); });
  window.addEventListener("afterprint", () => { printing = false; repaint(); });
};
