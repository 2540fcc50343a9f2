// Switches: plain radio buttons, lists and check boxes, so that keyboards and screen readers know them.

let controls = 0;

/**
 * A choice of one among several; of one alone nothing is shown.
 * @param {HTMLElement} parent
 * @param {{label: string, options: {key: string, label: string, disabled?: boolean}[], value: string, change: function(string)}} choice
 */
function choose(parent, { label, options, value, change }) {
  if (options.length < 2) return;
  const name = `choice-${controls++}`;
  const letters = options.reduce((sum, option) => sum + option.label.length, 0);
  if (options.length > 4 || letters > 52) {
    const group = make(parent, "div");
    make(group, "label", { className: "title", htmlFor: name }, label);
    const list = make(group, "select", { id: name });
    for (const option of options) make(list, "option", { value: option.key, selected: option.key === value, disabled: Boolean(option.disabled) }, option.label);
    list.addEventListener("change", () => change(list.value));
    return;
  }
  const group = make(parent, "fieldset");
  make(group, "legend", {}, label);
  const row = make(group, "div", { className: "options" });
  for (const option of options) {
    const item = make(row, "label");
    const input = make(item, "input", { type: "radio", name, value: option.key, checked: option.key === value, disabled: Boolean(option.disabled) });
    item.append(option.label);
    input.addEventListener("change", () => change(option.key));
  }
}

/** A check box an agent, with its line as it is drawn, and a button for all of them. */
function agentSwitches(parent, { agents, look, hidden, change, highlight }) {
  parent.replaceChildren();
  if (agents.length < 2) return;
  for (const agent of agents) {
    const label = make(parent, "label");
    const input = make(label, "input", { type: "checkbox", checked: !hidden.has(agent), value: agent });
    const sample = draw(label, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    const { colour, dash } = look(agent);
    draw(sample, "line", { x1: 1, x2: 25, y1: 5, y2: 5, style: `stroke: ${colour}`, "stroke-width": 3, "stroke-dasharray": dash });
    label.append(agent);
    input.addEventListener("change", () => { input.checked ? hidden.delete(agent) : hidden.add(agent); change(); });
    label.addEventListener("pointerenter", () => { if (!hidden.has(agent)) highlight(agent); });
    label.addEventListener("pointerleave", () => highlight(null));
  }
  const all = make(parent, "button", { type: "button" }, hidden.size ? "Show all" : "Hide all");
  all.addEventListener("click", () => {
    if (hidden.size) hidden.clear(); else agents.forEach((agent) => hidden.add(agent));
    change();
  });
}
