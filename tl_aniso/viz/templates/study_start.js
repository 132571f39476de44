// Unpack, draw for the first time, and say so where that fails.
const start = async () => {
  if (typeof DecompressionStream === "undefined") throw new Error("This browser cannot unpack the figures; one of 2023 or later can.");
  numbers = new Numbers(header);
  const [script] = await Promise.all([inflated("plotly-source").text(), numbers.load(0)]);
  const code = document.createElement("script");
  code.textContent = script;
  document.head.append(code);
  element("plotly-source").textContent = "";
  element("filters").reset(); // browsers restore earlier choices on reload
  fillAll(header.wanted);
  element("filters").hidden = false;
  wire();
  await redraw();
  if (typeof startGeometry === "function") await startGeometry();
  document.documentElement.dataset.drawn = String(document.querySelectorAll('.plot[data-drawn="true"]').length);
};
start().catch(tellFault);
