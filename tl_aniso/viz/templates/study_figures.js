// Figures as plotly takes them, and beside each the table of its numbers.
const HUES = header.hues;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "triangle-down", "star", "cross", "pentagon", "hexagon", "hourglass"];
const PUOR = ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#fee0b6", "#f7f7f7", "#d8daeb", "#b2abd2", "#8073ac", "#542788", "#2d004b"];
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, n = 44) => ([...String(text)].length > n ? `${[...String(text)].slice(0, n - 1).join("")}…` : String(text));
const digits = (value) => {
  if (!Number.isFinite(value)) return "no data";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
};
const missingNote = (missing, n) => (missing ? ` (${missing} of ${n} missing)` : "");
const orNull = (value) => (Number.isFinite(value) ? value : null);

const hueAt = (index) => HUES[index % HUES.length];
const styleAt = (index, thick) => ({
  line: { color: hueAt(index), width: thick ? 3.5 : 2, dash: DASHES[index % DASHES.length] },
  marker: { color: hueAt(index), size: thick ? 8 : 6, symbol: SYMBOLS[index % SYMBOLS.length] },
});
const clear = (colour) => `rgba(${[1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).join(",")},0.2)`;

// A band over all stretches in which both ends are known; a fill would bridge what is missing.
const bandOf = (xs, lows, highs, index, name) => {
  const x = [];
  const y = [];
  for (let from = 0; from < xs.length; from += 1) {
    if (Number.isFinite(lows[from]) && Number.isFinite(highs[from])) {
      let to = from;
      while (to + 1 < xs.length && Number.isFinite(lows[to + 1]) && Number.isFinite(highs[to + 1])) to += 1;
      for (let i = from; i <= to; i += 1) { x.push(xs[i]); y.push(lows[i]); }
      for (let i = to; i >= from; i -= 1) { x.push(xs[i]); y.push(highs[i]); }
      x.push(null); y.push(null);
      from = to;
    }
  }
  return { x, y, fill: "toself", fillcolor: clear(hueAt(index)), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false, name, legendgroup: name };
};

const logTicks = (values) => {
  const known = values.filter((v) => Number.isFinite(v) && v > 0);
  if (!known.length) return { type: "log" };
  const low = Math.min(Math.log10(Math.min(...known)), 0) - 0.05;
  const high = Math.max(Math.log10(Math.max(...known)), 0) + 0.05;
  const steps = high - low < 0.7 ? [1, 1.2, 1.5, 2, 3, 5, 7] : high - low < 2.2 ? [1, 2, 5] : [1];
  const tickvals = [];
  for (let power = Math.floor(low) - 1; power <= Math.ceil(high) + 1; power += 1) steps.forEach((s) => tickvals.push(s * 10 ** power));
  return { type: "log", tickvals, ticktext: tickvals.map((t) => String(Number(t.toPrecision(4)))), range: [low, high] };
};

// Log-spaced checkpoints would all sit at the left edge of a linear axis, and a log axis has no step 0.
const stepAxis = (points) => {
  const steps = points.map((p) => p.step).filter((s) => s > 0).sort((a, b) => a - b);
  const spread = steps.length > 3 && steps.at(-1) > 20 * steps[Math.floor(steps.length / 2)];
  const named = points.some((p) => p.step === null);
  const xs = points.map((p) => (named || spread ? p.label : p.step));
  const order = named || spread ? { type: "category", categoryorder: "array", categoryarray: xs } : { type: "linear" };
  return { xs, axis: { ...order, title: { text: named ? "revision" : "training step" } } };
};

const base = (height, narrow) => ({
  height,
  margin: { l: narrow ? 46 : 64, r: narrow ? 6 : 16, t: 24, b: 64 },
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: narrow ? 11 : 13, color: theme().ink },
  hoverlabel: { align: "left", bgcolor: theme().tint, font: { color: theme().ink }, bordercolor: "#808080" },
  legend: { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom" },
  modebar: { bgcolor: "rgba(0,0,0,0)", color: "#808080", activecolor: HUES[0] },
  hovermode: "closest",
});
const GRID = { gridcolor: "rgba(128,128,128,0.25)", zeroline: false, automargin: true, linecolor: "#808080" };
const axisOf = (measure, values) => {
  const title = { text: plain(measureName(measure)) };
  if (RATIOS.includes(measure)) return { ...GRID, title: { text: `${title.text} (log)` }, ...logTicks(values) };
  if (measure === "energy_share") return { ...GRID, title, range: [0, 1] };
  return { ...GRID, title, rangemode: measure === "delta_isoscore_star" ? "normal" : "tozero" };
};
const neutral = (measure) => {
  const y = RATIOS.includes(measure) ? 1 : measure === "delta_isoscore_star" ? 0 : null;
  if (y === null) return [];
  return [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: "#808080", width: 1, dash: "dot" } }];
};

// Curves over places, which are points of training or layers: what each curve is at each place, with its band.
const curveFigure = (view, places, curves, at, narrow, extra = []) => {
  const xs = places.xs;
  const traces = [];
  const drawn = [];
  const rows = xs.map((_, i) => ({ heading: places.labels[i], cells: [] }));
  for (const curve of curves) {
    const found = xs.map((_, i) => at(curve, i));
    const missing = found.reduce((sum, f) => sum + f.n - f.known, 0);
    const n = found.reduce((sum, f) => sum + f.n, 0);
    const name = short(curve.label) + missingNote(missing, n);
    const index = indexOf(curve.as ?? curve.control);
    const style = styleAt(index, curve.effect && curves.filter((c) => c.effect).length === 1);
    if (found.some((f) => Number.isFinite(f.low) && Number.isFinite(f.high))) {
      traces.push(bandOf(xs, found.map((f) => f.low), found.map((f) => f.high), index, plain(name)));
      drawn.push(...found.flatMap((f) => [f.low, f.high]));
    }
    drawn.push(...found.map((f) => f.value));
    traces.push({
      x: xs, y: found.map((f) => orNull(f.value)), name: plain(name), legendgroup: plain(name), mode: "lines+markers", connectgaps: false,
      hoverinfo: "text",
      text: found.map((f, i) => plain(`${short(curve.label)}: ${digits(f.value)}${f.ends ?? ""} (${f.known} of ${f.n} sites), ${places.name} ${places.labels[i]}`)),
      ...style,
    });
    found.forEach((f, i) => rows[i].cells.push(f));
  }
  const sites = extra.flatMap((trace) => trace.y.concat(trace.ends ?? []));
  const data = [...extra, ...traces];
  const width = element("figures").clientWidth;
  const layout = {
    ...base(430, narrow),
    xaxis: { ...GRID, ...places.axis },
    yaxis: axisOf(view.measure, drawn.concat(sites)),
    shapes: neutral(view.measure),
  };
  // The legend takes the rows that its names need, below a plot of the same height everywhere.
  const names = data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name.length);
  const across = Math.max(1, Math.floor((width - 60) / (Math.max(...names, 1) * (narrow ? 5.6 : 6.6) + 52)));
  layout.margin.b = 62 + 20 * Math.ceil(names.length / across);
  layout.height = (narrow ? 270 : 330) + layout.margin.b;
  layout.legend.maxheight = layout.margin.b;
  return { data, layout, table: { stub: places.name, columns: curves.map((c) => c.label), rows } };
};

const heatScale = (measure, values) => {
  const known = values.filter(Number.isFinite);
  let low = known.length ? Math.min(...known) : 0;
  let high = known.length ? Math.max(...known) : 1;
  const diverging = measure === "excess" || measure === "delta_isoscore_star";
  if (measure === "energy_share") [low, high] = [0, 1];
  else if (diverging) { high = Math.max(Math.abs(low), Math.abs(high), RATIOS.includes(measure) ? 0.05 : 1e-6); low = -high; }
  else if (high - low < 1e-9) { low -= 0.05; high += 0.05; }
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((t) => low + t * (high - low));
  return {
    cmin: low, cmax: high,
    colorscale: diverging ? PUOR.map((colour, i) => [i / (PUOR.length - 1), colour]) : "Cividis",
    colorbar: {
      orientation: "h", thickness: 12, len: 0.8, x: 0.5, y: 0, yref: "container", yanchor: "bottom", tickvals: ticks,
      ticktext: ticks.map((t) => String(Number((RATIOS.includes(measure) ? 10 ** t : t).toPrecision(3)))),
      title: { text: plain(measureName(measure)), side: "top" }, outlinecolor: "#808080",
    },
  };
};

// One map of layer and step for every curve, on one scale of colours; cells without data are crossed.
const heatFigure = (view, places, points, curves, at, narrow, width) => {
  const across = Math.min(curves.length, width < 520 ? 2 : width < 900 ? 3 : 4);
  const down = Math.ceil(curves.length / across);
  const tall = Math.min(260, Math.max(110, 12 * places.labels.length + 40));
  const layout = { ...base(down * (tall + 46) + 120, narrow), annotations: [], coloraxis: {} };
  layout.margin = { l: narrow ? 34 : 56, r: 8, t: 30, b: 104 };
  const inner = layout.height - layout.margin.t - layout.margin.b;
  const gap = 46 / inner;
  const high = (1 - gap * (down - 1)) / down;
  const wide = (1 - 0.03 * (across - 1)) / across;
  const data = [];
  const every = [];
  const logged = RATIOS.includes(view.measure);
  const labels = points.map((p) => p.label);
  const missed = [];
  curves.forEach((curve, index) => {
    const suffix = index ? String(index + 1) : "";
    const column = index % across;
    const row = Math.floor(index / across);
    const cells = places.labels.map((_, place) => points.map((_, point) => at(curve, place, point)));
    const numbers = cells.map((line) => line.map((f) => f.value));
    const z = numbers.map((line) => line.map((v) => (Number.isFinite(v) ? (logged ? Math.log10(v) : v) : null)));
    every.push(...z.flat().filter((v) => v !== null));
    const text = cells.map((line, i) => line.map((f, j) => plain(`${short(curve.label)}: ${digits(f.value)} (${f.known} of ${f.n} sites), step ${labels[j]}, layer ${places.labels[i]}`)));
    data.push({ type: "heatmap", x: labels, y: places.labels.map(plain), z, text, hoverinfo: "text", coloraxis: "coloraxis", xaxis: `x${suffix}`, yaxis: `y${suffix}`, customdata: numbers });
    const gone = [];
    numbers.forEach((line, i) => line.forEach((v, j) => { if (!Number.isFinite(v)) gone.push([labels[j], plain(places.labels[i])]); }));
    missed.push(gone.length);
    if (gone.length) {
      data.push({ type: "scatter", mode: "markers", x: gone.map((g) => g[0]), y: gone.map((g) => g[1]), marker: { symbol: "x-thin", size: 5, line: { width: 1, color: "#808080" } }, hovertemplate: "no data<extra></extra>", showlegend: false, xaxis: `x${suffix}`, yaxis: `y${suffix}` });
    }
    const top = 1 - row * (high + gap);
    layout[`xaxis${suffix}`] = { ...GRID, type: "category", categoryorder: "array", categoryarray: labels, domain: [column * (wide + 0.03), column * (wide + 0.03) + wide], anchor: `y${suffix}`, showgrid: false, nticks: 5, tickangle: 0, showticklabels: row === down - 1 || index + across >= curves.length, automargin: false };
    layout[`yaxis${suffix}`] = { ...GRID, type: "category", domain: [Math.max(0, top - high), top], anchor: `x${suffix}`, showgrid: false, showticklabels: column === 0, nticks: 8, automargin: false };
    layout.annotations.push({ text: plain(short(curve.label, narrow ? 22 : 30) + missingNote(gone.length, numbers.flat().length)), x: column * (wide + 0.03), y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: narrow ? 10 : 12 } });
  });
  layout.coloraxis = heatScale(view.measure, every);
  const rows = () => places.labels.flatMap((layer, i) => points.map((p, j) => ({ heading: `layer ${layer}, step ${p.label}`, cells: curves.map((curve) => at(curve, i, j)) })));
  return { data, layout, table: { stub: "layer and step", columns: curves.map((c) => c.label), rows } };
};
