// Memory, costs, and who waits for whom.

const USE_COLORS = { weights: COLORS[0], caches: COLORS[1], "other buffers": COLORS[2], scratch: COLORS[3], tables: COLORS[4], variables: COLORS[6], padding: COLORS[7], "code (estimated)": COLORS[5] };
const ROLE_USES = { weight: "weights", state: "caches", scratch: "scratch", in: "other buffers", out: "other buffers" };

function stacked(parts, whole, unit) {
  return el("div", { class: "bar", role: "img", "aria-label": parts.map(([name, size]) => `${name} ${count(size)}`).join(", ") },
    parts.filter(([, size]) => size > 0).map(([name, size, color]) => telling(el("div", { style: { width: `${100 * size / whole}%`, background: color } }), `${name}: ${amount(size, unit)}, ${(100 * size / whole).toFixed(1)} %`)));
}

function memoryView(main) {
  const found = phase().memory;
  if (!found) { put(main, el("p", {}, "This phase has no buffers: it was not compiled to a level of programs.")); return; }
  const uses = Object.entries(found.uses), taken = uses.reduce((sum, [, size]) => sum + size, 0), whole = taken + Math.max(found.left ?? 0, 0);
  const parts = uses.map(([name, size]) => [name, size, USE_COLORS[name] ?? COLORS[7]]);
  if (found.left > 0) parts.push(["left", found.left, FREE]);
  put(main, el("h2", {}, `Memory of a ${found.of}`), stacked(parts, whole, "bytes"), legend(parts.filter(([, size]) => size).map(([name, size, color]) => [`${name} ${count(size)}`, color])),
    el("p", { id: "memory-sum" }, found.left === null || found.left === undefined ? `${count(taken)} bytes; this device has no limit` : found.left < 0 ? `${count(taken)} bytes, ${count(-found.left)} more than there are` : `${count(taken)} bytes of ${count(whole)}; ${count(found.left)} are left`));
  if (found.lives.length) put(main, el("h2", {}, "What lies where, and how long"), el("p", { class: "soft" }, "Addresses from left to right, lines of the program from top to bottom. Buffers that are alive at different times may lie over each other."), memoryMap(found), legend(["weights", "caches", "scratch", "other buffers"].map((name) => [name, USE_COLORS[name]])));
  const most = Math.max(...found.buffers.map((one) => one.bytes), 1);
  put(main, el("h2", {}, "Buffers"), table([["buffer", (b) => el("code", {}, `%${b.name}`), (b) => b.name], ["bytes", (b) => count(b.bytes), (b) => b.bytes], ["role", (b) => b.role, (b) => b.role],
    ["", (b) => el("span", { class: "spark" }, el("div", { style: { width: `${100 * b.bytes / most}%`, background: USE_COLORS[ROLE_USES[b.role]] } })), null]], found.buffers, 1));
}

function memoryMap(found) {
  const top = Math.max(...found.lives.map((one) => one.address + one.bytes)), first = Math.min(...found.lives.map((one) => one.first)), last = Math.max(...found.lives.map((one) => one.last), first + 1);
  const [wide, high] = [1000, 300], picture = drawn("svg", { viewBox: `0 -2 ${wide + 60} ${high + 24}`, width: "100%", style: "max-width:1180px", role: "img", "aria-label": "addresses and lifetimes of buffers" });
  for (const one of found.lives) {
    const y0 = high * (one.first - first) / (last - first + 1), y1 = high * (one.last + 1 - first) / (last - first + 1);
    const box = drawn("rect", { x: 50 + wide * one.address / top, y: y0, width: Math.max(wide * one.bytes / top, 0.8), height: Math.max(y1 - y0, 1), fill: USE_COLORS[ROLE_USES[one.role]], stroke: "var(--back)", "stroke-width": 0.7, class: "node" });
    box.addEventListener("click", () => go({ view: "passes", line: one.first }));
    picture.append(telling(box, `%${one.name}: ${count(one.bytes)} bytes at ${count(one.address)}\nlines ${one.first} to ${one.last}`));
  }
  for (const [x, text] of [[50, "0"], [50 + wide / 2, count(Math.round(top / 2))], [44 + wide, count(top)]]) { const label = drawn("text", { x, y: high + 16, class: "label", "text-anchor": "middle" }); label.textContent = text; picture.append(label); }
  for (const [y, line] of [[10, first], [high, last]]) { const label = drawn("text", { x: 44, y, class: "label", "text-anchor": "end" }); label.textContent = `line ${line}`; picture.append(label); }
  return picture;
}

const MECHANISM_COLORS = { compute: COLORS[0], transfer: COLORS[1], stages: COLORS[3], waits: COLORS[7], overhead: COLORS[5] };
const MODEL_WORDS = { search: "costs by which passes choose, added up over ops of the mesh level", events: "events of the blocks of a program of tasks", clock: "clocks of all cores moved through the emitted program" };

function costsView(main) {
  const { clock, costs, silent } = phase();
  if (clock) {
    const kinds = { computes: ["computing", COLORS[0]], waits: ["waiting for words", COLORS[1]] }, most = Math.max(...clock.rows.map((row) => row.cost));
    const sums = Object.entries(kinds).map(([kind, [name, color]]) => [name, clock.rows.filter((row) => row.kind === kind).reduce((sum, row) => sum + row.cost, 0), color]);
    put(main, el("h2", {}, `${count(clock.total)} cycles, by the clock of the emitted program`), stacked(sums, clock.total, "cycles"), legend(sums.map(([name, size, color]) => [`${name} ${count(size)}`, color])),
      el("p", { class: "soft" }, `Of the core that ends last. No program with the same work takes fewer than ${count(clock.bound)}.`),
      table([["op", (r) => el("code", {}, r.op), (r) => r.op], ["times", (r) => count(r.times), (r) => r.times], ["cycles", (r) => count(r.cost), (r) => r.cost], ["at least", (r) => count(r.bound), (r) => r.bound],
        ["", (r) => el("span", { class: "spark" }, el("div", { style: { width: `${100 * r.cost / most}%`, background: kinds[r.kind]?.[1] ?? COLORS[7] } })), null], ["lines", (r) => r.lines.slice(0, 4).flatMap((line, n) => [n ? ", " : "", lineLink(line, String(line))]), null]], clock.rows, 2));
  }
  if (costs) {
    const sums = costs.apart.map((name, n) => [name, costs.rows.reduce((sum, row) => sum + row.parts[n], 0), MECHANISM_COLORS[name]]);
    const sum = (row) => row.parts.reduce((a, b) => a + b, 0), most = Math.max(...costs.rows.map(sum));
    const step = stepsOf(phase()).findLast((one) => phase().modules[one.module].level === costs.level);
    put(main, el("h2", {}, `${amount(costs.total, costs.unit)} predicted: ${MODEL_WORDS[costs.model] ?? costs.model}`), stacked(sums, costs.total, costs.unit), legend(sums.filter(([, size]) => size).map(([name, size, color]) => [`${name} ${amount(size, costs.unit)}`, color])),
      costs.left_out.length ? el("p", { class: "soft" }, `Not counted: ${costs.left_out.join(", ")}.`) : null,
      table([["op", (r) => el("code", {}, r.op), (r) => r.op], ["times", (r) => count(r.times), (r) => r.times], [costs.unit === "seconds" ? "time" : costs.unit, (r) => (costs.unit === "seconds" ? amount(sum(r), "s") : count(sum(r))), sum],
        ["", (r) => el("span", { class: "spark" }, r.parts.map((part, n) => telling(el("div", { style: { width: `${100 * part / most}%`, background: MECHANISM_COLORS[costs.apart[n]] } }), `${costs.apart[n]}: ${amount(part, costs.unit)}`))), null], ["lines", (r) => r.lines.slice(0, 3).flatMap((line, n) => [n ? ", " : "", lineLink(line, String(line), step.number)]), null]], costs.rows, 2));
  }
  if (!clock && !costs) put(main, el("p", {}, silent ? `Nothing is predicted: ${silent}` : "Nothing predicts this phase."));
}

function waitsView(main) {
  const { waits, clock } = phase(), level = phase().modules.at(-1).level;
  if (!waits.length) { put(main, el("p", {}, "Nobody waits here: this phase has no waits.")); return; }
  const cost = (line) => (clock ? clock.rows.filter((row) => row.kind === "waits" && row.lines.includes(line)).reduce((sum, row) => sum + row.cost, 0) : 0);
  const rows = waits.map((wait) => ({ ...wait, cost: Math.max(0, ...wait.ends.map((end) => cost(end.line))) }));
  put(main, el("h2", {}, level === "task" ? "What phases need, and who gives it" : "Waits, what they are for, and who brings it about"), el("p", { class: "soft" }, level === "task" ? "A phase begins when all blocks have given what its tasks need." : "A wait ends when its transfers have: what a core sends must be taken, what it receives must be sent by another core, on a line of the same program."));
  const senders = (end) => (end.from.length ? [" ← sent on ", ...end.from.slice(0, 6).flatMap((line, n) => [n ? ", " : "", lineLink(line, String(line))]), end.from.length > 6 ? ", …" : ""] : []);
  const columns = [[level === "task" ? "phase" : "wait", (w) => lineLink(w.line, level === "task" ? w.when : `line ${w.line}`), (w) => w.line]];
  if (clock) columns.push(["cycles of all waits for the same", (w) => (w.cost ? count(w.cost) : ""), (w) => w.cost]);
  columns.push([level === "task" ? "needs" : "for", (w) => w.ends.map((end) => (level === "task" ? el("div", {}, el("code", {}, `%${end.buffer}`), " given by ", lineLink(end.line, end.channel)) : el("div", {}, lineLink(end.line, `${end.verb} `), el("code", {}, `%${end.buffer} @${end.channel}`), end.when ? el("span", { class: "soft" }, ` where ${end.when}`) : null, senders(end)))), null]);
  put(main, table(columns, rows, clock ? 1 : null));
}
