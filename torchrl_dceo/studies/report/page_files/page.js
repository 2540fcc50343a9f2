// The page: what is chosen, and what is drawn from the data for it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const VIEWS = [
  { key: "iqm", label: "IQM, 95 %" },
  { key: "mean", label: "mean ± std" },
  { key: "seeds", label: "single seeds" },
];
const NOTES = {
  iqm: "Line: interquartile mean over seeds. Band: its 95 % stratified bootstrap interval, where there are two seeds or more. Unfinished runs count as far as they have come.",
  mean: "Line: mean over seeds. Band: one sample standard deviation to either side, as in the paper.",
  seeds: "Each line is one run.",
};
const DASHES = ["none", "none", "7 4", "2 4", "10 4 2 4", "5 3 1 3 1 3"];
const ALL_ENVIRONMENTS = "all environments";
const find = (id) => document.getElementById(id);

/** How an agent is drawn everywhere. */
function look(agent) {
  const place = DATA.agents.indexOf(agent);
  return { colour: `var(--agent-${place})`, dash: place < 2 ? "none" : DASHES[2 + ((place - 2) % (DASHES.length - 2))] };
}

const state = { hidden: new Set() };
const charts = [];

function highlight(name) { for (const chart of charts) chart.highlight(name); }

/** Everything that an agent switch changes. */
function refresh() {
  const focused = document.activeElement;
  const place = focused && focused.closest("[data-agents]");
  const value = place ? focused.value : null;
  for (const parent of document.querySelectorAll("[data-agents]")) {
    // Only agents that have a line in the chart below.
    const shown = parent.dataset.agents === "profiles" ? profileAgents() : curveAgents();
    agentSwitches(parent, { agents: DATA.agents.filter((agent) => shown.includes(agent)), look, hidden: state.hidden, change: refresh, highlight });
  }
  // The switches are made anew: the one in use keeps the keyboard.
  if (place) (value ? place.querySelector(`input[value="${CSS.escape(value)}"]`) : place.querySelector("button"))?.focus();
  drawCurves();
  drawProfiles();
}

/** The agents of the chosen environment and metric. */
function curveAgents() { return Object.keys(DATA.curves?.[state.environment]?.[state.metric]?.agents ?? {}); }

function profileAgents() {
  const score = DATA.profiles?.find((one) => one.key === state.score);
  return Object.keys(score?.environments[state.profileEnvironment]?.agents ?? {});
}

/** Says of a table that is wider than the page that it can be scrolled. */
function scrollHints() {
  for (const box of document.querySelectorAll(".scroll")) {
    const wide = box.scrollWidth > box.clientWidth + 1;
    let hint = box.previousElementSibling?.classList.contains("hint") ? box.previousElementSibling : null;
    if (wide && !hint) {
      hint = document.createElement("p");
      hint.className = "hint";
      hint.textContent = "Scroll sideways for more columns →";
      box.before(hint);
    } else if (!wide && hint) hint.remove();
  }
}

function bounds(values, least) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(0, ...known), high = Math.max(least, ...known);
  const room = (high - low) * 0.04;
  return { low: low < 0 ? low - room : low, high: high > low ? high + room : low + 1 };
}

function withInterval(value, low, high) {
  return low === null || high === null ? exact(value) : `${exact(value)} [${exact(low)}, ${exact(high)}]`;
}

function curveLines(agents) {
  const lines = [];
  for (const [name, own] of Object.entries(agents)) {
    if (state.hidden.has(name)) continue;
    const { colour, dash } = look(name);
    if (state.view === "seeds") {
      const seeds = Object.values(own.seeds);
      seeds.forEach((values, i) => lines.push({ name, colour, dash, values, width: 1.4, opacity: 0.75, titled: i === 0 && seeds.length === 1 ? name : null }));
    } else if (state.view === "mean") {
      const shifted = (sign) => own.mean.map((value, i) => (own.std[i] === null ? null : value + sign * own.std[i]));
      lines.push({ name, colour, dash, values: own.mean, low: shifted(-1), high: shifted(1), width: 2.4, titled: name });
    } else {
      lines.push({ name, colour, dash, values: own.iqm, low: own.low, high: own.high, width: 2.4, titled: name });
    }
  }
  return lines.reverse(); // the first agent on top
}

function curveReadout(curve, index) {
  const rows = [];
  for (const [name, own] of Object.entries(curve.agents)) {
    if (state.hidden.has(name) || own.iqm[index] === null) continue;
    const { colour } = look(name);
    const seeds = Object.entries(own.seeds).filter(([, values]) => values[index] !== null);
    let text = withInterval(own.iqm[index], own.low[index], own.high[index]);
    if (state.view === "mean") text = exact(own.mean[index]) + (own.std[index] === null ? "" : ` ± ${exact(own.std[index])}`);
    if (state.view === "seeds") {
      const numbers = seeds.map(([, values]) => values[index]);
      text = seeds.length > 5
        ? `${exact(Math.min(...numbers))} to ${exact(Math.max(...numbers))}`
        : seeds.map(([seed, values]) => `${seed}: ${exact(values[index])}`).join("  ");
    }
    rows.push({ name, colour, text, value: own.iqm[index] });
  }
  rows.sort((a, b) => b.value - a.value);
  return { title: `${short(curve.grid[index])} frames`, rows };
}

function drawCurves() {
  if (!state.curveChart) return;
  const metric = DATA.metrics.find((one) => one.key === state.metric);
  const curve = DATA.curves[state.environment][state.metric];
  const marks = DATA.marks[state.environment];
  const lines = curveLines(curve.agents);
  const everything = Object.values(curve.agents).flatMap((own) => (state.view === "seeds" ? Object.values(own.seeds).flat() : [...own.iqm, ...own.high, ...own.low, ...own.mean]));
  find("curve-note").textContent = NOTES[state.view] + (Object.keys(marks.discovery).length ? " A triangle marks where an agent’s discovery ends." : "");
  state.curveChart.show({
    label: `${metric.label} in ${state.environment} along frames`,
    grid: curve.grid,
    x: { label: "frames", low: 0, high: curve.grid.at(-1) },
    y: { label: metric.label, ...bounds(everything, state.metric.endsWith("return") || state.metric.includes("similarity") ? 1 : 1e-9) },
    lines,
    marks: marks.switches.map((x) => ({ x, text: "the environment changes" })),
    ticks: Object.entries(marks.discovery).filter(([name]) => !state.hidden.has(name)).map(([name, x]) => ({ x, colour: look(name).colour, text: `${name}: discovery ends` })),
    readout: (index) => curveReadout(curve, index),
  });
}

function drawProfiles() {
  if (!state.profileChart) return;
  const score = DATA.profiles.find((one) => one.key === state.score);
  const profile = score.environments[state.profileEnvironment];
  const lines = Object.entries(profile.agents).filter(([name]) => !state.hidden.has(name)).map(([name, own]) => ({
    name, ...look(name), values: own.value, low: own.low, high: own.high, width: 2.4, step: true, titled: null,
  }));
  state.profileChart.show({
    label: `Performance profiles in ${state.profileEnvironment}: ${score.label}`,
    grid: profile.levels,
    x: { label: `${score.label}: τ`, low: profile.levels[0], high: profile.levels.at(-1) },
    y: { label: "share of runs above τ", low: 0, high: 1.04 },
    lines: lines.reverse(),
    readout: (index) => ({
      title: `above ${exact(profile.levels[index])}`,
      rows: Object.entries(profile.agents).filter(([name]) => !state.hidden.has(name)).map(([name, own]) => ({ name, colour: look(name).colour, text: withInterval(own.value[index], own.low[index], own.high[index]) })),
    }),
  });
}

function options(names) { return names.map((name) => ({ key: name, label: name })); }

function curveControls() {
  const parent = find("curve-controls");
  parent.replaceChildren();
  choose(parent, { label: "Environment", options: options(DATA.environments), value: state.environment, change: (environment) => {
    state.environment = environment;
    if (!DATA.curves[environment][state.metric]) state.metric = Object.keys(DATA.curves[environment])[0];
    const again = document.activeElement.name;
    curveControls();
    refresh();
    if (again) parent.querySelector("input:checked")?.focus();
  } });
  const metrics = DATA.metrics.map((one) => ({ ...one, disabled: !DATA.curves[state.environment][one.key] }));
  choose(parent, { label: "Metric", options: metrics, value: state.metric, change: (metric) => { state.metric = metric; refresh(); } });
  choose(parent, { label: "Show", options: VIEWS, value: state.view, change: (view) => { state.view = view; drawCurves(); } });
}

function profileControls() {
  const parent = find("profile-controls");
  const environments = Object.keys(DATA.profiles[0].environments);
  choose(parent, { label: "Environment", options: options(environments), value: state.profileEnvironment, change: (environment) => { state.profileEnvironment = environment; refresh(); } });
  choose(parent, { label: "Score", options: DATA.profiles, value: state.score, change: (score) => { state.score = score; refresh(); } });
}

function drawImprovement() {
  const parent = find("improvement-table");
  const matrix = DATA.improvement.find((one) => one.key === state.measure).environments[state.improvementEnvironment];
  parent.replaceChildren();
  if (!matrix) { make(parent, "p", { className: "empty" }, "This is not compared over environments."); return; }
  const box = make(parent, "div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Probability of improvement" });
  const table = make(box, "table", { className: "matrix" });
  const names = Object.keys(matrix);
  const head = make(make(table, "thead"), "tr");
  make(head, "th", { scope: "col" }, "better than →");
  for (const name of names) make(head, "th", { scope: "col" }, name);
  const body = make(table, "tbody");
  for (const agent of names) {
    const row = make(body, "tr");
    const first = make(row, "th", { scope: "row" });
    make(first, "span", { className: "swatch", style: `--colour: ${look(agent).colour}` });
    first.append(agent);
    for (const over of names) {
      const cell = make(row, "td");
      if (agent === over) { cell.textContent = "·"; continue; }
      const [value, low, high] = matrix[agent][over];
      cell.textContent = value.toFixed(2);
      cell.style.background = `color-mix(in srgb, var(${value > 0.5 ? "--better" : "--worse"}) ${Math.round(Math.abs(value - 0.5) * 76)}%, transparent)`;
      if (low !== null) make(cell, "small", {}, `${low.toFixed(2)} – ${high.toFixed(2)}`);
    }
  }
  scrollHints();
}

function improvementControls() {
  const parent = find("improvement-controls");
  const environments = [...new Set(DATA.improvement.flatMap((one) => Object.keys(one.environments)))];
  state.improvementEnvironment = widest(environments);
  state.measure = (DATA.improvement.find((one) => one.key.startsWith("area")) || DATA.improvement[0]).key;
  choose(parent, { label: "Environment", options: options(environments), value: state.improvementEnvironment, change: (environment) => { state.improvementEnvironment = environment; drawImprovement(); } });
  choose(parent, { label: "Measure", options: DATA.improvement, value: state.measure, change: (measure) => { state.measure = measure; drawImprovement(); } });
}

/** Pictures are in the page, all of them; one environment and agent is shown at a time. */
function learnedControls() {
  const blocks = [...document.querySelectorAll(".learned")];
  if (!blocks.length) return;
  const parent = find("learned-controls");
  parent.className = "controls";
  const environments = [...new Set(blocks.map((block) => block.dataset.environment))];
  const agentsOf = (environment) => [...new Set(blocks.filter((block) => block.dataset.environment === environment).map((block) => block.dataset.agent))];
  let environment = environments[0], agent = agentsOf(environment)[0];
  const update = (again) => {
    for (const block of blocks) block.hidden = block.dataset.environment !== environment || block.dataset.agent !== agent;
    parent.replaceChildren();
    choose(parent, { label: "Environment", options: options(environments), value: environment, change: (value) => {
      environment = value;
      if (!agentsOf(environment).includes(agent)) agent = agentsOf(environment)[0];
      update(0);
    } });
    choose(parent, { label: "Agent", options: options(agentsOf(environment)), value: agent, change: (value) => { agent = value; update(environments.length > 1 ? 1 : 0); } });
    if (again !== null) parent.children[again].querySelector("input:checked, select").focus();
  };
  update(null);
}

function copyButtons() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = find(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        // A page from a file may not be allowed to: select the text and copy in the old way.
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

function schemeButton() {
  const schemes = ["system", "light", "dark"];
  const button = find("scheme");
  button.addEventListener("click", () => {
    schemes.push(schemes.shift());
    document.documentElement.style.colorScheme = schemes[0] === "system" ? "" : schemes[0];
    button.textContent = `Scheme: ${schemes[0]}`;
  });
}

/** Marks the section that is being read. */
function followSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const key of links.keys()) seen.observe(find(key));
}

/** The last of several environments is all of them together, where that makes sense. */
function widest(environments) { return environments.at(-1) === ALL_ENVIRONMENTS ? ALL_ENVIRONMENTS : environments[0]; }

if (DATA.environments?.length) {
  state.environment = DATA.environments[0];
  state.metric = Object.keys(DATA.curves[state.environment])[0];
  state.view = "iqm";
  state.curveChart = new LineChart(find("curve-chart"));
  charts.push(state.curveChart);
  curveControls();
}
if (DATA.profiles?.length) {
  state.profileEnvironment = widest(Object.keys(DATA.profiles[0].environments));
  state.score = DATA.profiles.at(-1).key;
  state.profileChart = new LineChart(find("profile-chart"));
  charts.push(state.profileChart);
  profileControls();
}
if (DATA.improvement?.length) {
  improvementControls();
  drawImprovement();
}
refresh();
learnedControls();
copyButtons();
schemeButton();
followSections();
scrollHints();
window.addEventListener("resize", scrollHints);
