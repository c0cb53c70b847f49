(() => {
  const data = report.json("curves-data");
  if (!data) return;
  const band = document.getElementById("curves-band");
  const smooth = document.getElementById("curves-smooth");
  const legend = document.getElementById("curves-legend");
  const hidden = new Set();
  const charts = [];

  const banded = () => Boolean(band && band.checked);
  const keyOf = (run, place) => (banded() ? run.experiment : place);
  const translucent = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

  function smoothed(values) {
    const keep = Number(smooth.value);
    let mean = values[0];
    return values.map((value) => (mean = keep * mean + (1 - keep) * value));
  }

  function lines() {
    const found = new Map();
    data.runs.forEach((run, place) => {
      const key = keyOf(run, place);
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(run);
    });
    return [...found].map(([key, runs], place) => ({
      key, runs, place,
      name: runs.length > 1 ? `${runs[0].name} and ${runs.length - 1} more` : runs[0].name,
    }));
  }

  function overSeeds(runs, metric) {
    const at = new Map();
    for (const run of runs) {
      const series = run.series[metric];
      if (!series) continue;
      const values = smoothed(series[1]);
      series[0].forEach((step, place) => {
        if (!at.has(step)) at.set(step, []);
        at.get(step).push(values[place]);
      });
    }
    const steps = [...at.keys()].sort((a, b) => a - b);
    const all = steps.map((step) => at.get(step));
    return {
      steps,
      mean: all.map((values) => values.reduce((a, b) => a + b, 0) / values.length),
      low: all.map((values) => Math.min(...values)),
      high: all.map((values) => Math.max(...values)),
    };
  }

  function traces(metric) {
    const out = [];
    for (const line of lines()) {
      if (hidden.has(line.key)) continue;
      const {steps, mean, low, high} = overSeeds(line.runs, metric);
      if (!steps.length) continue;
      const colour = report.colour(line.place);
      if (line.runs.length > 1) {
        const edge = {x: steps, mode: "lines", line: {width: 0}, hoverinfo: "skip"};
        out.push({...edge, y: low}, {...edge, y: high, fill: "tonexty", fillcolor: translucent(colour, 0.18)});
      }
      out.push({
        x: steps, y: mean, name: line.name, mode: steps.length > 1 ? "lines" : "markers",
        line: {color: colour, width: 2}, marker: {color: colour},
      });
    }
    return out;
  }

  function fill(box) {
    if (box.childElementCount) return;
    for (const metric of data.groups[Number(box.dataset.group)].metrics) {
      const chart = document.createElement("div");
      chart.className = "plot";
      chart.dataset.metric = metric;
      box.append(chart);
      charts.push(chart);
      report.draw(chart, () => traces(metric), {title: {text: metric}});
    }
  }

  function writeLegend() {
    legend.replaceChildren(...lines().map((line) => {
      const button = document.createElement("button");
      const chip = document.createElement("i");
      button.type = "button";
      chip.style.background = report.colour(line.place);
      button.append(chip, line.name);
      button.setAttribute("aria-pressed", String(!hidden.has(line.key)));
      button.title = line.runs.map((run) => run.name).join(", ");
      button.addEventListener("click", () => {
        if (!hidden.delete(line.key)) hidden.add(line.key);
        update();
      });
      return button;
    }));
  }

  function update() {
    writeLegend();
    report.again();
  }

  document.querySelectorAll("#curves details").forEach((details) => {
    const box = details.querySelector(".grid");
    if (details.open) fill(box);
    details.addEventListener("toggle", () => details.open && fill(box));
  });
  if (band) band.addEventListener("change", () => { hidden.clear(); update(); });
  smooth.addEventListener("input", () => report.again());
  document.documentElement.addEventListener("themechange", writeLegend);
  writeLegend();
})();
