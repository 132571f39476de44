// Numbers of a study: packed arrays, the rules that give others from them, and means over sites.
const element = (id) => document.getElementById(id);
const headerOf = (id) => JSON.parse(element(id).textContent);
const header = headerOf("study-header");

const bytesOf = (id) => {
  const text = document.getElementById(id).textContent.trim();
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
};
const inflated = (id) => {
  const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream);
};

const unpacked = (entry, bytes) => {
  if ("all" in entry) {
    const value = { NaN, nan: NaN, inf: Infinity, "-inf": -Infinity }[entry.all] ?? Number(entry.all);
    return new Float32Array(entry.n).fill(value);
  }
  const { n, at } = entry;
  const whole = new Uint8Array(4 * n);
  for (let plane = 0; plane < 4; plane += 1) {
    for (let i = 0, from = at + plane * n; i < n; i += 1) whole[4 * i + plane] = bytes[from + i];
  }
  return new Float32Array(whole.buffer);
};

// The whole page is there: numbers of all models but the first stand below this script.
const whole = () => new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done, { once: true });
});

class Numbers {
  constructor(header) {
    Object.assign(this, { header, loads: new Map(), bytes: [], arrays: new Map(), found: new Map() });
  }

  // Unpacks the numbers of a model, once; nothing of it can be asked for before.
  load(model) {
    if (!this.loads.has(model)) this.loads.set(model, this.loaded(model));
    return this.loads.get(model);
  }

  async loaded(model) {
    if (model > 0) await whole();
    this.bytes[model] = new Uint8Array(await inflated(`study-numbers-${model}`).arrayBuffer());
    element(`study-numbers-${model}`).textContent = "";
  }

  all() {
    return Promise.all(this.header.models.map((_, model) => this.load(model)));
  }

  // Of a block, all rows and checkpoints of one field; null where the study has none.
  field(block, measure, control, field) {
    const rule = this.header.blocks[block].series[measure]?.[control]?.[field];
    return rule === undefined ? null : this.of(block, rule);
  }

  of(block, rule) {
    if (typeof rule === "number") {
      const { model } = this.header.blocks[block];
      const at = `${model} ${rule}`;
      if (!this.arrays.has(at)) this.arrays.set(at, unpacked(this.header.models[model].arrays[rule], this.bytes[model]));
      return this.arrays.get(at);
    }
    const key = `${block} ${JSON.stringify(rule)}`;
    if (!this.found.has(key)) this.found.set(key, this.computed(block, rule));
    return this.found.get(key);
  }

  computed(block, [kind, ...parts]) {
    const [a, b] = parts.map((part) => this.of(block, part));
    const made = new Float64Array(a.length);
    if (kind === "div") for (let i = 0; i < a.length; i += 1) made[i] = a[i] / b[i];
    else if (kind === "mirror") for (let i = 0; i < a.length; i += 1) made[i] = (a[i] * a[i]) / b[i];
    else {
      const { odds, model } = this.header.blocks[block];
      const nPoints = this.header.models[model].checkpoints.length;
      for (let i = 0; i < a.length; i += 1) {
        const scaled = a[i] * (odds[Math.floor(i / nPoints)] ?? NaN);
        made[i] = scaled / (1 + scaled);
      }
    }
    return made;
  }
}

const GEOMETRIC = ["r_energy", "excess"];
const RATIOS = ["r_energy", "excess"];
const ISOTROPY = ["isoscore_star", "isoscore"];

// The curves of a measure, the effect first: which field of which control, its ends, and what a band spans.
const curvesOf = (series, measure) => {
  const of = series[measure] ?? {};
  const controls = Object.keys(of).sort((a, b) => rankOf(a) - rankOf(b));
  const found = [];
  const add = (control, field, label, more = {}) => {
    if (of[control]?.[field] !== undefined) found.push({ control, field, label, groups: of[control].groups, measure, ...more });
  };
  const ends = { low: "low", high: "high" };
  if (measure === "energy_share") {
    add("none", "value", nameOf("none"), { effect: true, ...ends });
    if (of.none) add("none", "mean", nameOf("normal"), { sd: "sd", as: "normal" });
    controls.forEach((c) => c !== "none" && add(c, "control", nameOf(c), { sd: "sd" }));
  } else if (measure === "r_energy") {
    add(of.normal ? "normal" : controls[0], "value", nameOf("none"), { effect: true, as: "none", ...ends });
    controls.forEach((c) => add(c, "control", nameOf(c)));
  } else if (ISOTROPY.includes(measure)) {
    add("normal", "value", "without tangent", { effect: true, as: "none" });
    add("none", "value", "before", { as: "before" });
    controls.forEach((c) => c !== "none" && add(c, "control", `without ${nameOf(c)}`, { sd: "sd" }));
  } else if (measure === "excess" || measure === "delta_isoscore_star") {
    controls.forEach((c) => add(c, "value", `over ${nameOf(c)}`, { effect: true, ...ends }));
  } else {
    const first = of.none ? "none" : controls[0];
    add(first, "value", nameOf("none"), { effect: true, as: "none", ...ends });
    controls.forEach((c) => c !== "none" && add(c, "control", nameOf(c)));
  }
  return found;
};

// A mean over sites, and how many of them it is of: what is not finite, and 0 under a geometric mean, is left out.
const meanOf = (values, rows, point, nPoints, geometric) => {
  let sum = 0;
  let known = 0;
  for (const row of rows) {
    const value = values[row * nPoints + point];
    if (Number.isFinite(value) && (!geometric || value > 0)) {
      sum += geometric ? Math.log(value) : value;
      known += 1;
    }
  }
  return { value: known ? (geometric ? Math.exp(sum / known) : sum / known) : NaN, known, n: rows.length };
};
