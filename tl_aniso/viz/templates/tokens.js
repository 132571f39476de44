(() => {
  "use strict";
  const MISSING = 65535, MOST = 65534, STEPS = 64;

  const bytes = (packed) => Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const words = (packed) => new Uint16Array(bytes(packed).buffer);
  const longs = (packed) => new Uint32Array(bytes(packed).buffer);
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const share = (value) => value.toFixed(4);
  const ratio = (power) => {
    const value = 10 ** power;
    return value >= 1000 || value < 0.001 ? value.toExponential(1) : value.toPrecision(3);
  };

  function chooser(label, options) {
    const box = make("label"), select = make("select");
    box.append(make("span", "tl-name", label));
    options.forEach((option, i) => {
      const element = make("option", "", option);
      element.value = i;
      select.append(element);
    });
    box.append(select);
    return [box, select];
  }

  function draw(root) {
    const data = JSON.parse(root.querySelector(".tl-data").textContent);
    const index = longs(data.index), ids = longs(data.ids), flags = bytes(data.flags), changed = bytes(data.changed);
    const n = index.length, [low, high] = data.span;
    for (const series of data.series) {
      series.share = series.share.map(words);
      series.energy = series.energy.map(words);
      series.sink = bytes(series.sink);
      // Few large shares would leave the rest dark: a layer's scale ends where 2% of its values lie beyond.
      const all = series.layers.map((_, l) => series.share.flatMap((codes) => [...codes.subarray(l * n, (l + 1) * n)])
        .filter((code) => code !== MISSING).sort((a, b) => a - b));
      series.tops = all.map((codes) => Math.max(1, codes[Math.ceil(0.98 * codes.length) - 1] || 1));
      series.beyond = all.map((codes, l) => codes.length > 0 && codes[codes.length - 1] > series.tops[l]);
      series.most = Math.max(1, ...all.map((codes) => codes[codes.length - 1] || 1));
    }
    const power = (code) => low + (code / MOST) * (high - low);
    let series = Math.max(0, data.series.findIndex((s) => s.labels.length > 1));
    let layer = 0, mode = 0, piece = 0, whole = 0, current = -1;
    let spans = [], drawn = [];

    // -- elements --------------------------------------------------------------------------------------------
    const controls = make("div", "tl-controls");
    const [seriesBox, seriesChoice] = chooser("Show", data.series.map((s) => `${s.quantity} · ${s.place}`));
    const [modeBox, modeChoice] = chooser("Colour by", ["tangent share", "energy, of the mean"]);
    const [wholeBox, wholeChoice] = chooser("Scale", ["of this layer", "of all layers"]);
    const [pieceBox, pieceChoice] = chooser(
      "Text", data.pieces.map((p, i) => `${i + 1} of ${data.pieces.length} (${(p.stop - p.start).toLocaleString("en")} tokens)`));
    const layerBox = make("label"), slider = make("input"), told = make("output");
    slider.type = "range"; slider.min = 0; slider.step = 1; slider.value = 0;
    layerBox.append(make("span", "tl-name", "Layer"), slider, told);
    pieceBox.hidden = data.pieces.length < 2;
    seriesBox.hidden = data.series.length < 2;
    seriesChoice.value = series;
    controls.append(seriesBox, modeBox, layerBox, wholeBox, pieceBox);

    const legend = make("div", "tl-legend"), scale = make("div", "tl-scale"), bar = make("div", "tl-bar");
    const tick = make("span", "tl-tick"), ends = make("div", "tl-ends"), lowest = make("span"), highest = make("span");
    bar.append(tick);
    ends.append(lowest, highest);
    scale.append(bar, ends);
    legend.append(scale);
    const key = (name, text) => {
      const element = make("span", "tl-key");
      element.append(make("bdi", name, "ab"), text);
      legend.append(element);
      return element;
    };
    const missingKey = key("tl-none", "");
    key("tl-special", "special token");
    key("tl-sink", "sink");

    const panels = make("div", "tl-panels"), readout = make("div", "tl-readout"), note = make("p", "tl-note");
    readout.setAttribute("aria-live", "polite");
    const slots = [0, 1].map(() => {
      const panel = make("div", "tl-panel"), heading = make("p", "tl-heading"), summary = make("p", "tl-summary");
      const text = make("div", "tl-text");
      text.tabIndex = 0;
      text.setAttribute("role", "group");
      panel.append(heading, summary, text);
      panels.append(panel);
      return { panel, heading, summary, text };
    });
    const hint = make("p", "tl-note", "Point at a token, or put the focus on a text and use the arrow keys, to read its values.");
    root.append(controls, legend, panels, readout, note, hint);
    for (const line of data.notes) root.append(make("p", "tl-note", line));

    // -- values ----------------------------------------------------------------------------------------------
    const here = () => data.series[series];
    const top = () => (whole ? here().most : here().tops[layer]);
    const code = (slot, i) => (mode ? here().energy : here().share)[slot][layer * n + i];
    const sinkAt = (i) => (here().sink[layer * here().stride + (i >> 3)] >> (i & 7)) & 1;
    const stepOf = (value) => {
      const place = mode ? (power(value) + 2) / 4 : value / top();
      return Math.max(0, Math.min(STEPS - 1, Math.floor(place * STEPS)));
    };

    function build() {
      const { start, stop } = data.pieces[piece];
      spans = []; drawn = []; current = -1;
      for (const slot of slots) {
        const found = [], content = document.createDocumentFragment();
        for (let i = start; i < stop; i += 1) {
          const text = data.vocabulary[index[i]], element = make("bdi", "", text);
          element.tlToken = i;
          found.push(element);
          content.append(element);
          if (text.includes("\u21b5")) content.append(document.createElement("br"));
        }
        slot.text.replaceChildren(content);
        spans.push(found);
        drawn.push(new Array(found.length).fill(""));
      }
      slider.value = layer;
    }

    function paint() {
      const s = here(), { start } = data.pieces[piece];
      const layers = s.layers.length;
      slider.max = layers - 1;
      layer = Math.min(layer, layers - 1);
      slider.value = layer;
      layerBox.hidden = layers < 2;
      const name = s.layers[layer] === null ? s.place : `${s.layers[layer]}`;
      told.textContent = layers > 1 ? `${name} (${layer + 1} of ${layers})` : name;
      slider.setAttribute("aria-valuetext", `layer ${name}`);
      root.dataset.layer = name;
      const missingHere = [];
      slots.forEach((slot, k) => {
        slot.panel.hidden = k >= s.labels.length;
        if (slot.panel.hidden) return;
        let sum = 0, count = 0, weight = 0, weighted = 0, missing = 0;
        spans[k].forEach((element, j) => {
          const i = start + j, value = code(k, i), part = s.share[k][layer * n + i];
          if (part === MISSING) missing += 1;
          else {
            const w = 10 ** power(s.energy[k][layer * n + i]);
            sum += part / MOST; count += 1; weight += w; weighted += (w * part) / MOST;
          }
          const name = (value === MISSING ? "tl-none" : `q${stepOf(value)}`) + (flags[i] & 1 ? " tl-special" : "")
            + (sinkAt(i) ? " tl-sink" : "") + (i === current ? " tl-current" : "");
          if (drawn[k][j] !== name) {
            drawn[k][j] = name;
            element.className = name;
          }
        });
        missingHere.push(missing);
        slot.heading.textContent = s.quantity === "activation" ? "Activations" : s.titles[k];
        slot.summary.textContent = count
          ? `mean share ${share(sum / count)}, weighted with energy ${share(weighted / weight)}; `
            + `${missing} of ${spans[k].length} tokens without a value`
          : `no value at all: ${missing} of ${spans[k].length} tokens without one`;
        slot.text.setAttribute("aria-label", `${slot.heading.textContent}: text of ${spans[k].length} tokens`);
      });
      const alike = missingHere.length > 1 && missingHere.every((count) => count === missingHere[0]);
      missingKey.lastChild.textContent = `no value (${alike ? `${missingHere[0]} in each` : missingHere.join(" and ")})`;
      wholeBox.hidden = mode === 1;
      const most = top() / MOST, chance = s.chance[layer];
      lowest.textContent = mode ? "0.01 × mean or less" : "0";
      highest.textContent = mode ? "100 × or more" : share(most) + (!whole && s.beyond[layer] ? " or more" : "");
      tick.hidden = mode === 0 && chance > most;
      const place = mode ? 0.5 : chance / most;
      tick.style.left = `${100 * place}%`;
      tick.classList.toggle("tl-left", place > 0.5);
      tick.textContent = mode ? "mean" : `k/d ${share(chance)}`;
      note.textContent = `${s.quantity} at ${s.place}, plane of ${s.rank[layer]} of ${s.d} directions. ${s.note}`;
      read();
    }

    function read() {
      const s = here();
      if (current < 0) {
        readout.textContent = "No token chosen.";
        return;
      }
      const i = current, { start } = data.pieces[piece];
      readout.replaceChildren();
      const title = make("strong"), about = [];
      title.append("“", make("bdi", "", data.vocabulary[index[i]]), "”");
      readout.append(title, ` id ${ids[i]}, position ${i - start}, layer ${root.dataset.layer}`);
      if (flags[i] & 1) about.push("special token");
      if (sinkAt(i)) about.push("sink: its residual norm exceeds 10 times the median");
      if (changed[i]) about.push("masked: the model read another token here");
      if (s.quantity !== "activation" && flags[i] & 2) about.push("no loss of its own");
      if (about.length) readout.append(`; ${about.join("; ")}`);
      s.labels.forEach((_, k) => {
        const value = s.share[k][layer * n + i];
        const line = make("div", "tl-value"), name = s.quantity === "activation" ? "" : `${s.titles[k]}: `;
        line.dataset.labels = s.labels[k];
        line.dataset.share = value === MISSING ? "missing" : value / MOST;
        line.textContent = value === MISSING
          ? `${name}no value (the row is zero, or no gradient reaches this position)`
          : `${name}share ${share(value / MOST)}, energy ${ratio(power(s.energy[k][layer * n + i]))} × the mean`;
        readout.append(line);
      });
    }

    function choose(i) {
      const { start, stop } = data.pieces[piece];
      if (i < start || i >= stop || i === current) return;
      for (const [k, found] of spans.entries()) {
        if (current >= 0) found[current - start].classList.remove("tl-current");
        found[i - start].classList.add("tl-current");
        if (current >= 0) drawn[k][current - start] = "";
        drawn[k][i - start] = "";
      }
      current = i;
      read();
    }

    // -- what a reader does ----------------------------------------------------------------------------------
    let waiting = false; // a slider that is dragged asks more often than a long text can be drawn
    slider.addEventListener("input", () => {
      layer = Number(slider.value);
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; paint(); });
    });
    seriesChoice.addEventListener("change", () => { series = Number(seriesChoice.value); paint(); });
    modeChoice.addEventListener("change", () => { mode = Number(modeChoice.value); paint(); });
    wholeChoice.addEventListener("change", () => { whole = Number(wholeChoice.value); paint(); });
    pieceChoice.addEventListener("change", () => { piece = Number(pieceChoice.value); build(); paint(); });
    for (const [k, slot] of slots.entries()) {
      slot.text.addEventListener("pointerover", (event) => {
        const i = event.target.tlToken;
        if (i !== undefined) choose(i);
      });
      slot.text.addEventListener("keydown", (event) => {
        const { start, stop } = data.pieces[piece], from = current < 0 ? start - 1 : current;
        const to = { ArrowRight: current < 0 ? start : from + 1, ArrowLeft: Math.max(start, from - 1), Home: start, End: stop - 1 }[event.key];
        if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        choose(Math.min(to, stop - 1));
        const box = slot.text, element = spans[k][current - start];
        const away = element.getBoundingClientRect().top - box.getBoundingClientRect().top;
        if (away < 0 || away + element.offsetHeight > box.clientHeight) box.scrollTop += away - box.clientHeight / 2;
      });
    }
    build();
    paint();
  }

  for (const root of document.querySelectorAll(".tl-tokens:not([data-drawn])")) {
    root.dataset.drawn = "";
    draw(root);
  }
})();
