// Unpack, draw for the first time, and say so where that fails.
const start = async () => {
  if (typeof DecompressionStream === "undefined") throw new Error("This browser cannot unpack the figures; one of 2023 or later can.");
  const [data, script] = await Promise.all([inflated("study-numbers").arrayBuffer(), inflated("plotly-source").text()]);
  numbers = new Numbers(header, new Uint8Array(data));
  const code = document.createElement("script");
  code.textContent = script;
  document.head.append(code);
  ["study-numbers", "plotly-source"].forEach((id) => { element(id).textContent = ""; });
  element("filters").reset(); // browsers restore earlier choices on reload
  fillAll(header.wanted);
  element("filters").hidden = false;
  wire();
  await redraw();
  if (typeof startGeometry === "function") await startGeometry();
  document.documentElement.dataset.drawn = String(document.querySelectorAll('.plot[data-drawn="true"]').length);
};
start().catch((error) => {
  element("figures-fault").textContent = `The figures could not be drawn: ${error.message}`;
  element("figures-fault").hidden = false;
});
