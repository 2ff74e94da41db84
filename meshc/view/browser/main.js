// The frame: tabs, the overview, dark and light.

function overview(main) {
  const cards = el("div", { class: "cards" });
  const facts = [["model", DATA.model], ["target", DATA.target], ["device", DATA.device]];
  if (DATA.facts) facts.push(...DATA.facts);
  put(cards, el("section", { class: "card" }, el("h2", {}, "What this is"), el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))));
  if (DATA.phases.length) {
    const one = phase();
    put(cards, el("section", { class: "card" }, el("h2", {}, `Phase ${one.name}`), el("dl", { class: "facts" }, factsOf(one).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])), regionsPicture(one)));
    if (one.memory) put(cards, el("section", { class: "card" }, memoryCard(one.memory)));
    if (one.clock || one.costs) put(cards, el("section", { class: "card" }, costCard(one)));
  }
  const said = DATA.messages.filter((m) => !m.phase || !DATA.phases.length || m.phase === phase().name);
  if (said.length) put(cards, el("section", { class: "card", style: { gridColumn: "1 / -1" } }, el("h2", {}, "What the compiler said"), said.map((m) => messageNode(m, m.pass.replace(/\{.*\}$/, "")))));
  put(main, cards);
}

function factsOf(one) {
  const last = one.modules.at(-1), facts = [["level", `${last.level}, ${count(last.places.length)} ops`], ["passes", `${one.steps.length - 1}, of which ${one.modules.length - 1} change something`]];
  if (one.mesh) facts.push(["mesh", `${one.mesh.columns} × ${one.mesh.rows} cores${one.mesh.regions > 1 ? `, ${one.mesh.regions} regions` : ""}`]);
  if (one.routes) facts.push(["channels", `${one.routes.channels.length}, longest way ${Math.max(0, ...one.routes.channels.map((c) => c.hops))} hops`]);
  if (one.emitted.length) facts.push(["emitted", [...new Set(one.emitted.map(([file]) => DATA.files[file].name))].join(", ")]);
  return facts;
}

function memoryCard(found) {
  const parts = Object.entries(found.uses).map(([name, size]) => [name, size, USE_COLORS[name] ?? COLORS[7]]), whole = parts.reduce((sum, [, size]) => sum + size, 0) + Math.max(found.left ?? 0, 0);
  if (found.left > 0) parts.push(["left", found.left, FREE]);
  return [el("h2", {}, el("a", { href: address({ view: "memory" }) }, `Memory of a ${found.of}`)), stacked(parts, whole, "bytes"), legend(parts.filter(([, size]) => size).map(([name, size, color]) => [`${name} ${count(size)}`, color]))];
}

function costCard(one) {
  const rows = one.clock ? one.clock.rows.map((r) => [r.op, r.cost]) : one.costs.rows.map((r) => [r.op, r.parts.reduce((a, b) => a + b, 0)]);
  const total = rows.reduce((sum, [, cost]) => sum + cost, 0), unit = one.clock ? "cycles" : one.costs.unit;
  const most = [...rows].sort((a, b) => b[1] - a[1]).slice(0, 7), rest = total - most.reduce((sum, [, cost]) => sum + cost, 0);
  const parts = [...most.map(([name, cost], n) => [name, cost, COLORS[n]]), ["others", rest, FREE]];
  return [el("h2", {}, el("a", { href: address({ view: "costs" }) }, `${amount(total, unit)} predicted`)), stacked(parts, total, unit), legend(parts.map(([name, cost, color]) => [`${name} ${(100 * cost / total).toFixed(0)} %`, color]))];
}

function regionsPicture(one) {
  if (!one.mesh || !one.size.length) return null;
  const [wide, high] = one.size, { rows, columns } = one.mesh, origins = one.mesh.origins.length ? one.mesh.origins : [[0, 0]];
  const scale = 190 / Math.max(wide, high), picture = drawn("svg", { width: wide * scale + 2, height: high * scale + 2, role: "img", "aria-label": "where regions lie on the device" });
  picture.append(drawn("rect", { x: 1, y: 1, width: wide * scale, height: high * scale, fill: "none", stroke: "var(--soft)" }));
  origins.forEach(([x, y], region) => picture.append(telling(drawn("rect", { x: 1 + x * scale, y: 1 + y * scale, width: columns * scale, height: rows * scale, fill: COLORS[region % COLORS.length], opacity: 0.75, stroke: "var(--back)" }), `region ${region}: columns ${x} to ${x + columns - 1}, rows ${y} to ${y + rows - 1}`)));
  return el("div", {}, el("h3", {}, `${one.mesh.regions > 1 ? "regions" : "the mesh"} on the ${wide} × ${high} cores of the device`), picture);
}

const VIEWS = [
  ["overview", "Overview", overview, () => true], ["model", "Model", graphView, () => phase()?.graph], ["passes", "Passes", passesView, () => phase()],
  ["files", "Files", filesView, () => DATA.sources.length && phase()],
  ["layouts", "Layouts", layoutsView, () => phase()?.layouts], ["routes", "Routes", routesView, () => phase()?.routes?.channels.length], ["memory", "Memory", memoryView, () => phase()?.memory],
  ["waits", "Waits", waitsView, () => phase()?.waits.length], ["costs", "Costs", costsView, () => phase()?.clock || phase()?.costs], ["timeline", "Timeline", timelineView, () => DATA.timelines.length],
  ["fabric", "Fabric", fabricView, () => DATA.fabrics.length],
];

function render() {
  readAddress(VIEWS.map(([name]) => name));
  document.onkeydown = null;
  untell();
  const main = document.getElementById("main"), shown = VIEWS.filter(([, , , there]) => there());
  const chosen = shown.find(([name]) => name === place.view) ?? shown[0];
  document.getElementById("tabs").replaceChildren(...shown.map(([name, title]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === chosen[0]), onclick: () => go({ view: name }) }, title)));
  main.replaceChildren();
  chosen[2](main);
}

function start() {
  const words = [DATA.target, ...DATA.phases.slice(0, 1).map((one) => (one.mesh ? `mesh ${one.mesh.columns} × ${one.mesh.rows}` : ""))].filter(Boolean);
  document.getElementById("subtitle").textContent = words.join(" · ");
  const chooser = document.getElementById("phases");
  if (DATA.phases.length > 1) {
    document.getElementById("phases-label").hidden = false;
    put(chooser, ...DATA.phases.map((one, n) => el("option", { value: String(n) }, one.name)));
    chooser.addEventListener("change", () => go({ view: place.view, phase: Number(chooser.value) }));
  }
  const theme = (name) => { document.documentElement.dataset.theme = name; dispatchEvent(new Event("theme")); };
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.getElementById("tabs").addEventListener("keydown", (event) => {
    const tabs = [...document.querySelectorAll("#tabs button")], now = tabs.indexOf(document.activeElement), next = { ArrowRight: now + 1, ArrowLeft: now - 1 }[event.key];
    if (next !== undefined && tabs[next]) { tabs[next].click(); document.getElementById(tabs[next].id).focus(); }
  });
  addEventListener("hashchange", () => { render(); if (chooser.options.length) chooser.value = String(place.phase); });
  render();
  document.documentElement.dataset.ready = "yes";
}
start();
