// Draws the figures of a tutorial, whose data stand in the page, in the colours of the page: light, dark, or switched.
const places = [...document.querySelectorAll("[data-figure]")];

function ink() {
  const dark = document.body.dataset.mdColorScheme === "slate";
  return dark
    ? { "font.color": "#dfe3ea", "updatemenus[0].bgcolor": "#2b303b", "updatemenus[0].font.color": "#dfe3ea" }
    : { "font.color": "#20242c", "updatemenus[0].bgcolor": "#ffffff", "updatemenus[0].font.color": "#20242c" };
}

function paint(place) {
  const wanted = ink();
  if (!place.layout.updatemenus?.length) {
    return Plotly.relayout(place, { "font.color": wanted["font.color"] });
  }
  return Plotly.relayout(place, wanted);
}

const drawn = places.map((place) => {
  const figure = JSON.parse(place.querySelector("script").textContent);
  const config = { ...figure.config, displaylogo: false, displayModeBar: false };
  delete config.plotlyServerURL;
  return Plotly.newPlot(place, figure.data, figure.layout, config).then(() => paint(place));
});

Promise.all(drawn).then(() => {
  const repaint = () => places.forEach(paint);
  const fit = new ResizeObserver((seen) => seen.forEach(({ target }) => Plotly.Plots.resize(target)));
  places.forEach((place) => fit.observe(place));
  new MutationObserver(repaint).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
});
