// Local geometry and frequency: medians over rows by layer, every group beside every control.
const geometryHeader = headerOf("geometry-header");
let geometry = null;
const GEOMETRY_LISTS = ["model", "measure", "gradient", "variant", "step"];
const geometryRows = (upTo) => {
  const wanted = GEOMETRY_LISTS.slice(0, upTo).map((name) => [name, element(`geometry-${name}`).value]);
  return geometry.rows.filter((row) => wanted.every(([name, value]) => geometry.label(row, name) === value));
};
const fillGeometry = () => GEOMETRY_LISTS.forEach((name, at) => {
  const select = element(`geometry-${name}`);
  const before = select.value;
  const values = unique(geometryRows(at).map((row) => geometry.label(row, name)));
  const words = (value) => ({ measure: measureName, gradient: (g) => GRADIENTS[g] ?? g, step: (s) => (s === "" ? "over checkpoints" : s) }[name] ?? ((v) => v || "–"))(value);
  select.replaceChildren(...values.map((value) => Object.assign(document.createElement("option"), { value, textContent: short(words(value), 70) })));
  select.value = values.includes(before) ? before : values[name === "step" ? values.length - 1 : 0];
});
const medianOf = (values) => {
  const known = values.filter(Number.isFinite).sort((a, b) => a - b);
  const middle = known.length / 2;
  return { value: !known.length ? NaN : known.length % 2 ? known[Math.floor(middle)] : (known[middle - 1] + known[middle]) / 2, known: known.length, n: values.length };
};
const drawGeometry = async () => {
  const rows = geometryRows(GEOMETRY_LISTS.length);
  const of = (name, row) => geometry[name][row];
  const labels = unique(rows.map((row) => of("layer", row))).sort((a, b) => (Number.isNaN(a) - Number.isNaN(b)) || a - b).map((l) => (Number.isNaN(l) ? "–" : String(l)));
  const label = (row) => (Number.isNaN(of("layer", row)) ? "–" : String(of("layer", row)));
  const curves = [];
  unique(rows.map((row) => geometry.label(row, "group"))).forEach((group) => {
    unique(rows.filter((row) => geometry.label(row, "group") === group).map((row) => geometry.label(row, "control"))).forEach((control) => {
      const own = rows.filter((row) => geometry.label(row, "group") === group && geometry.label(row, "control") === control);
      const name = geometryHeader.controls[control] ?? control;
      if (!curves.some((c) => c.group === group && c.effect)) curves.push({ label: group || "value", group, own, field: "value", effect: true, as: "none" });
      if (control !== "none") curves.push({ label: `${group ? `${group}: ` : ""}${name}`, group, own, field: "control_value", control });
    });
  });
  const groups = unique(curves.map((curve) => curve.group));
  const seen = unique(curves.filter((curve) => !curve.effect).map((curve) => curve.control));
  const measure = element("geometry-measure").value;
  const figure = curveFigure({ measure }, byLayer(labels), curves, (curve, i) => {
    const here = curve.own.filter((row) => label(row) === labels[i]);
    const found = medianOf(here.map((row) => of(curve.field, row)));
    if (curve.effect && here.length === 1) {
      Object.assign(found, { low: of("ci_low", here[0]), high: of("ci_high", here[0]) });
      if (Number.isFinite(found.low)) found.ends = ` (${digits(found.low)} to ${digits(found.high)})`;
    }
    return found;
  }, element("geometry").clientWidth < 520);
  let at = 0;
  figure.data.forEach((trace) => {
    if (trace.fill) { trace.fillcolor = clear(hueAt(groups.indexOf(curves[at].group))); return; }
    const curve = curves[at];
    at += 1;
    const style = curve.effect ? styleAt(0, true) : styleAt(1 + seen.indexOf(curve.control), false);
    trace.line = { ...style.line, color: hueAt(groups.indexOf(curve.group)) };
    trace.marker = { ...style.marker, color: hueAt(groups.indexOf(curve.group)) };
  });
  figure.layout.yaxis = { ...GRID, title: { text: plain(measureName(measure)) } };
  await showFigure("geometry", figure, `Local geometry: ${measureName(measure)}, ${short(element("geometry-model").value, 60)}`);
};
const startGeometry = async () => {
  const bytes = new Uint8Array(await inflated("geometry-packed").arrayBuffer());
  const array = (at) => unpacked(geometryHeader.arrays[at], bytes);
  geometry = { rows: [...Array(geometryHeader.n).keys()] };
  Object.entries(geometryHeader.numbers).forEach(([name, at]) => { geometry[name] = array(at); });
  const codes = Object.fromEntries(Object.entries(geometryHeader.text).map(([name, { codes: at }]) => [name, array(at)]));
  geometry.label = (row, name) => (name === "step" ? (Number.isNaN(geometry.step[row]) ? "" : String(geometry.step[row])) : geometryHeader.text[name].values[codes[name][row]]);
  fillGeometry();
  element("geometry-filters").hidden = false;
  GEOMETRY_LISTS.forEach((name) => element(`geometry-${name}`).addEventListener("change", () => { fillGeometry(); drawGeometry(); }));
  dark.addEventListener("change", drawGeometry);
  await drawGeometry();
};
