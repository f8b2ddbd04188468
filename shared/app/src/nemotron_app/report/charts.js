// Reads a chart's values to people who point at it, touch it, or press arrow keys on it.
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg"), cursor = chart.querySelector(".cursor"), said = chart.querySelector("output");
  const marks = chart.querySelector("rect[data-says]") ? barsOf(chart) : stepsOf(chart, svg.viewBox.baseVal.width);
  let at = -1;

  const read = (index) => {
    at = Math.max(0, Math.min(marks.length - 1, index));
    cursor.setAttribute("x1", marks[at].x);
    cursor.setAttribute("x2", marks[at].x);
    cursor.classList.add("on");
    said.textContent = marks[at].say();
  };
  const leave = () => {
    at = -1;
    cursor.classList.remove("on");
    said.textContent = "";
  };
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    read(nearest(marks.map(({ x }) => x), (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width));
  };
  chart.addEventListener("pointerdown", point);
  chart.addEventListener("pointermove", point);
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1 }[event.key];
    if (event.key === "Escape") leave();
    if (to === undefined) return;
    event.preventDefault();
    read(to);
  });
}

function barsOf(chart) {
  return [...chart.querySelectorAll("rect[data-says]")].map(({ x, width, dataset }) => ({
    x: x.baseVal.value + width.baseVal.value / 2, say: () => dataset.says,
  }));
}

function stepsOf(chart, width) {
  const [first, last, left, right] = ["first", "last", "left", "right"].map((name) => Number(chart.dataset[name]));
  const curves = [...chart.querySelectorAll("path[data-steps]")].map(({ dataset }) => ({
    name: dataset.name, steps: dataset.steps.split(" ").map(Number), values: dataset.values.split(" "),
  }));
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const say = (step) => `step ${step}: ` + curves.map(({ name, steps, values }) => {
    const found = nearest(steps, step);
    return `${name} ${values[found]}` + (steps[found] === step ? "" : ` (step ${steps[found]})`);
  }).join(", ");
  return steps.map((step) => ({
    x: width * (left + (right - left) * (step - first) / (last - first)), say: () => say(step),
  }));
}

function nearest(known, wanted) {
  return known.reduce((best, one, index) => (Math.abs(one - wanted) < Math.abs(known[best] - wanted) ? index : best), 0);
}
