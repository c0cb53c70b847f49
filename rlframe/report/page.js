"use strict";
const report = (() => {
  const root = document.documentElement;
  const light = ["#2563eb", "#d9480f", "#15803d", "#7c3aed", "#be185d", "#0e7490", "#a16207", "#475569"];
  const dark = ["#7aa2ff", "#ff9d5c", "#5fd38d", "#b79cff", "#f687b3", "#4fd1e0", "#e3c04d", "#a5b0c0"];
  const drawn = new Map();

  const isDark = () => {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const colour = (place) => (isDark() ? dark : light)[place % light.length];
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const json = (id) => {
    const block = document.getElementById(id);
    return block ? JSON.parse(block.textContent) : null;
  };

  function themed(layout) {
    const axis = {gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true};
    const given = layout || {};
    return {
      ...given,
      title: {...given.title, x: 0.02, xanchor: "left", font: {size: 13}},
      font: {color: css("--ink"), size: 12, family: "system-ui, sans-serif"},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: {l: 44, r: 12, t: 34, b: 32}, showlegend: false, hovermode: "x unified",
      hoverlabel: {bgcolor: css("--paper"), bordercolor: css("--line")},
      xaxis: {...axis, ...given.xaxis}, yaxis: {...axis, ...given.yaxis},
    };
  }

  /* traces may be a function, which is asked again when the theme changes. */
  function draw(element, traces, layout) {
    drawn.set(element, [traces, layout]);
    const shown = typeof traces === "function" ? traces() : traces.map((one, place) => ({
      mode: "lines", ...one, line: {color: colour(place), width: 2, ...one.line},
    }));
    Plotly.react(element, shown, themed(layout), {responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["lasso2d", "select2d"]});
  }

  const again = () => drawn.forEach(([traces, layout], element) => draw(element, traces, layout));
  const button = document.getElementById("theme");
  button.addEventListener("click", () => {
    const order = ["", "light", "dark"];
    const next = order[(order.indexOf(root.dataset.theme || "") + 1) % 3];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    button.textContent = `theme: ${next || "auto"}`;
    root.dispatchEvent(new Event("themechange"));
    again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    root.dispatchEvent(new Event("themechange"));
    again();
  });
  document.querySelectorAll(".plot > script").forEach((block) => {
    const {traces, layout} = JSON.parse(block.textContent);
    const element = block.parentElement;
    block.remove();
    draw(element, traces, layout);
  });
  return {colour, css, json, draw, again, isDark};
})();
