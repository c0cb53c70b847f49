(() => {
  const list = document.getElementById("sample-list");
  if (!list) return;
  const control = (name) => document.getElementById(`sample-${name}`);
  const samples = [...list.children];
  const words = {
    a: "blue: better than its group, red: worse",
    l: "the redder, the less likely",
    m: "grey: not trained on",
    "": "",
  };
  const shade = (good, strength) =>
    `rgb(${good ? "59 130 246" : "239 68 68"} / ${(0.08 + 0.5 * strength).toFixed(2)})`;

  function background(key, value, largest) {
    if (Number.isNaN(value)) return "";
    if (key === "m") return value ? "" : "rgb(128 128 128 / 0.35)";
    if (key === "l") return shade(false, Math.min(-value / 5, 1) - 0.16);
    return value ? shade(value > 0, Math.min(Math.abs(value) / largest, 1)) : "";
  }

  function colour(sample) {
    const key = control("colour").value;
    const spans = [...sample.querySelectorAll(".tokens span")];
    const largest = Math.max(1, ...spans.map((span) => Math.abs(Number(span.dataset.a || 0))));
    for (const span of spans) {
      const given = key ? span.dataset[key] : undefined;
      span.style.background = given === undefined ? "" : background(key, Number(given), largest);
      const {l, a, m} = span.dataset;
      span.title = [l && `log-probability ${l}`, a && `advantage ${a}`, m === "0" && "not trained on"]
        .filter(Boolean).join(", ");
    }
  }

  function choose() {
    const run = control("run").value, step = control("step").value, order = control("order").value;
    for (const sample of samples) {
      sample.hidden = (run && sample.dataset.run !== run) || (step && sample.dataset.step !== step);
    }
    const reward = (sample) => (sample.dataset.reward === "" ? NaN : Number(sample.dataset.reward));
    const sign = order === "low" ? 1 : -1;
    const sorted = order === "step" ? samples : [...samples].sort((one, other) => {
      const [a, b] = [reward(one), reward(other)];
      return Number.isNaN(a) - Number.isNaN(b) || sign * (a - b) || 0;
    });
    list.replaceChildren(...sorted);
  }

  function recolour() {
    control("scale").textContent = words[control("colour").value];
    samples.filter((sample) => sample.open).forEach(colour);
  }

  samples.forEach((sample) => sample.addEventListener("toggle", () => sample.open && colour(sample)));
  ["run", "step", "order"].forEach((name) => control(name).addEventListener("change", choose));
  control("colour").addEventListener("change", recolour);
  recolour();
})();
