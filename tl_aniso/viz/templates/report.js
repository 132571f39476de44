(() => {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const colours = (isDark) => ({
    "font.color": isDark ? "#e6e8eb" : "#1b1f24",
    "hoverlabel.bgcolor": isDark ? "#1e232b" : "#ffffff",
    "hoverlabel.font.color": isDark ? "#e6e8eb" : "#1b1f24",
  });
  const narrow = (width) => ({
    "font.size": width < 520 ? 11 : 13,
    "margin.l": width < 520 ? 48 : 64,
    "margin.r": width < 520 ? 4 : 16,
  });
  const paint = (isDark) => plots.forEach((plot) => Plotly.relayout(plot, { ...colours(isDark), ...narrow(plot.clientWidth) }));
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const drawn = plots.map((plot) => {
    const figure = read(`${plot.id}-data`);
    return Plotly.newPlot(plot, figure.data, figure.layout, options);
  });
  Promise.all(drawn).then(() => {
    paint(dark.matches);
    document.documentElement.dataset.drawn = String(plots.length);
  });
  dark.addEventListener("change", () => paint(dark.matches));
  window.addEventListener("resize", () => paint(dark.matches));
  window.addEventListener("beforeprint", () => { paint(false); plots.forEach((plot) => Plotly.Plots.resize(plot)); });
  window.addEventListener("afterprint", () => { paint(dark.matches); plots.forEach((plot) => Plotly.Plots.resize(plot)); });
  document.querySelectorAll("select[data-figure]").forEach((select) => {
    const { args } = read(`${select.dataset.figure}-updates`);
    select.value = "0"; // browsers restore an earlier choice on reload, but not the figure that went with it
    select.addEventListener("change", () => Plotly.update(document.getElementById(select.dataset.figure), ...args[Number(select.value)]));
  });
})();
