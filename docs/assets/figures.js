// Draws the figures of a tutorial, whose data stand in the page.
for (const place of document.querySelectorAll("[data-figure]")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  const config = { ...figure.config, responsive: true, displaylogo: false };
  delete config.plotlyServerURL;
  Plotly.newPlot(place, figure.data, figure.layout, config);
}
