// The module after each pass: what changed, where each op comes from, and what it became.

const shownPasses = { only: false, words: "", marks: true };

function stepsOf(one) { return one.steps.map((step, number) => ({ ...step, number, name: step.pass || "as given", before: number ? one.steps[number - 1].module : step.module })); }

function passesView(main) {
  const one = phase(), steps = stepsOf(one);
  const step = steps[Math.min(place.step ?? steps.length - 1, steps.length - 1)];
  const list = el("div", {}), code = el("div", {}), side = el("div", {});
  put(main, el("div", { class: "columns passes" }, list, code, side));
  stepList(list, one, steps, step);
  codePanel(code, side, one, step, list, steps);
}

function stepList(list, one, steps, chosen) {
  const items = [];
  let level = "";
  for (const step of steps) {
    const module = one.modules[step.module];
    if (module.level !== level) items.push(el("li", { class: "level" }, `${level = module.level} level`));
    const sums = step.module === step.before ? [0, 0] : one.changes[step.module].reduce(([a, b], [p, q, r, s]) => [a + s - r, b + q - p], [0, 0]);
    const hits = shownPasses.words ? matching(module.text, shownPasses.words).length : 0;
    const marks = step.number === 0 ? [] : step.module === step.before ? [el("span", { class: "soft" }, "=")] : [el("span", { class: "plus" }, `+${sums[0]}`), el("span", { class: "minus" }, `−${sums[1]}`)];
    const said = DATA.messages.filter((m) => m.pass && m.pass === step.pass && m.phase === one.name).length;
    items.push(el("li", {}, el("button", { type: "button", "aria-current": String(step.number === chosen.number), title: step.name, onclick: () => go({ view: "passes", step: step.number, line: null }) },
      el("span", { class: "name" }, step.name.replace(/\{.*\}$/, "")), hits ? el("span", { class: "hits", title: "lines found" }, String(hits)) : null, said ? el("span", { class: "soft", title: "remarks" }, `✎${said}`) : null, ...marks)));
  }
  list.replaceChildren(el("h3", {}, "passes"), el("ol", { class: "list" }, items), el("p", { class: "soft" }, "[ and ] go to the pass before and behind, j and k from op to op, / searches."));
}

function matching(text, words) {
  const wanted = words.toLowerCase();
  return text.split("\n").flatMap((line, n) => (line.toLowerCase().includes(wanted) ? [n + 1] : []));
}

// Lines of the module and, between them, those that the pass took away.
function entriesOf(one, step) {
  const lines = one.modules[step.module].text.split("\n");
  const before = one.modules[step.before].text.split("\n");
  const changed = step.module === step.before || !shownPasses.marks ? [] : one.changes[step.module];
  const entries = [];
  let at = 0;
  const same = (until) => { for (; at < until; at++) entries.push({ sign: "", line: at + 1, text: lines[at] }); };
  for (const [a, b, c, d] of changed) {
    same(Math.min(c, lines.length));
    for (const text of before.slice(a, b)) entries.push({ sign: "−", line: null, text });
    for (; at < Math.min(d, lines.length); at++) entries.push({ sign: "+", line: at + 1, text: lines[at] });
  }
  same(lines.length);
  return entries;
}

function codePanel(code, side, one, step, list, steps) {
  const module = one.modules[step.module];
  const places = new Map(module.places.map(([line, ...where]) => [line, where]));
  const search = el("input", { type: "search", placeholder: "search (/)", "aria-label": "search in the module", value: shownPasses.words });
  const found = el("span", { class: "soft" });
  const only = el("button", { type: "button", "aria-pressed": String(shownPasses.only), onclick: () => { shownPasses.only = !shownPasses.only; fill(); } }, "only what changed");
  const marks = el("button", { type: "button", "aria-pressed": String(shownPasses.marks), onclick: () => { shownPasses.marks = !shownPasses.marks; fill(); } }, "changes");
  const box = el("div", { class: "code", role: "list", "aria-label": `module after ${step.name}` });
  const note = step.number === 0 ? "what passes were given" : step.module === step.before ? "changes nothing" : "";
  put(code, el("div", { class: "tools" }, el("b", {}, step.name), el("span", { class: "soft" }, note), search, found, marks, only), box);
  const rows = new Map();

  function fill() {
    rows.clear();
    only.setAttribute("aria-pressed", String(shownPasses.only));
    marks.setAttribute("aria-pressed", String(shownPasses.marks));
    const entries = entriesOf(one, step);
    const near = entries.map(() => !shownPasses.only);
    if (shownPasses.only) entries.forEach((entry, n) => { if (entry.sign) for (let m = n - 3; m <= n + 3; m++) if (m in near) near[m] = true; });
    const nodes = [];
    let hidden = [];
    const gap = () => {
      if (!hidden.length) return;
      const mine = hidden;
      hidden = [];
      nodes.push(el("button", { class: "gap", type: "button", onclick: (event) => { mine.forEach((row) => { row.hidden = false; }); event.target.remove(); } }, `⋯ ${mine.length} lines`), ...mine);
    };
    entries.forEach((entry, n) => {
      const row = rowOf(entry);
      if (near[n]) { gap(); nodes.push(row); } else { row.hidden = true; hidden.push(row); }
    });
    gap();
    box.replaceChildren(...nodes);
    folds(entries, nodes.filter((node) => node.classList.contains("row")));
    mark();
    choose(place.line, true);
  }

  function rowOf(entry) {
    const where = entry.line === null ? null : places.get(entry.line);
    const kind = entry.sign === "+" ? " add" : entry.sign ? " del" : "";
    const row = el("div", { class: `row${kind}${where ? " op" : ""}`, role: "listitem" }, el("span", { class: "no" }, entry.line ?? ""), el("span", { class: "fold" }), el("span", { class: "sign" }, entry.sign), el("span", { class: "what" }, painted(entry.text)));
    if (where) row.addEventListener("click", (event) => { if (event.target.tagName !== "BUTTON") { history.replaceState(null, "", address({ view: "passes", step: step.number, line: entry.line })); place.line = entry.line; choose(entry.line, false); } });
    if (entry.line !== null) rows.set(entry.line, row);
    return row;
  }

  function folds(entries, nodes) {
    const indent = (text) => text.length - text.trimStart().length;
    entries.forEach((entry, n) => {
      const head = entry.line === 1;
      if (entry.sign === "−" || !(head || entry.text.endsWith("{"))) return;
      let last = n;
      if (head) while (last + 1 < entries.length && !/^ {2}(func|program) /.test(entries[last + 1].text)) last++;
      else while (last + 1 < entries.length && (entries[last + 1].sign === "−" || indent(entries[last + 1].text) > indent(entry.text))) last++;
      if (last - n < 2) return;
      const mine = nodes.slice(n + 1, last + 1);
      const button = el("button", { class: "fold", type: "button", "aria-expanded": "true", title: `${mine.length} lines` }, "▾");
      const fold = (open) => { mine.forEach((row) => { row.hidden = !open; }); button.textContent = open ? "▾" : "▸"; button.setAttribute("aria-expanded", String(open)); };
      button.addEventListener("click", () => fold(button.getAttribute("aria-expanded") !== "true"));
      nodes[n].querySelector(".fold").replaceWith(button);
      nodes[n].unfold = () => fold(true);
      mine.forEach((row) => { (row.around ||= []).push(nodes[n]); });
      if (head && mine.length > 14 && !shownPasses.only && (place.line === null || places.has(place.line))) fold(false);
    });
  }

  function reveal(row) {
    (row.around || []).forEach((head) => head.unfold());
    row.hidden = false;
    row.scrollIntoView({ block: "center" });
  }

  function mark() {
    const hits = shownPasses.words ? matching(module.text, shownPasses.words) : [];
    rows.forEach((row, line) => row.classList.toggle("hit", hits.includes(line)));
    found.textContent = shownPasses.words ? `${hits.length} lines` : "";
    return hits;
  }

  let at = -1;
  search.addEventListener("input", () => { shownPasses.words = search.value; at = -1; mark(); stepList(list, one, steps, step); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const hits = mark();
    if (!hits.length) return;
    at = (at + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
    reveal(rows.get(hits[at]));
    choose(hits[at], false);
  });

  function choose(line, scroll) {
    rows.forEach((row) => row.classList.remove("chosen", "same-source"));
    const where = line === null ? null : places.get(line);
    if (where) for (const [other, [source, number]] of places) if (source === where[0] && number === where[1]) rows.get(other)?.classList.add("same-source");
    const row = rows.get(line);
    if (row) { row.classList.add("chosen"); if (scroll) reveal(row); }
    detail(side, one, step, line, where);
  }

  document.onkeydown = (event) => {
    if (place.view !== "passes" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key === "[" || event.key === "]") go({ view: "passes", step: Math.max(0, Math.min(steps.length - 1, step.number + (event.key === "]" ? 1 : -1))), line: null });
    if (event.key === "j" || event.key === "k") {
      const ops = [...places.keys()], now = ops.indexOf(place.line);
      const next = ops[event.key === "j" ? Math.min(now + 1, ops.length - 1) : Math.max(now - 1, 0)];
      place.line = next;
      history.replaceState(null, "", address({ view: "passes", step: step.number, line: next }));
      choose(next, true);
    }
  };
  fill();
}

function excerpt(text, marked, around) {
  const lines = text.split("\n"), wanted = new Set();
  for (const [first, last] of marked) for (let n = first - around; n <= Math.min(last, first + 60) + around; n++) if (n > 0 && n <= lines.length) wanted.add(n);
  const box = el("div", { class: "code" });
  let before = null;
  for (const n of [...wanted].sort((a, b) => a - b)) {
    if (before !== null && n > before + 1) put(box, el("div", { class: "row n" }, el("span", { class: "no" }, "⋯")));
    const here = marked.some(([first, last]) => n >= first && n <= last);
    put(box, el("div", { class: here ? "row hit" : "row" }, el("span", { class: "no" }, n), el("span", { class: "what" }, painted(lines[n - 1]))));
    before = n;
  }
  return box;
}

// Files and stretches that the op on a line became; of an op before the last pass those of all that came of its place.
function becameOf(one, step, line, where) {
  const last = step.module === one.modules.length - 1;
  const lines = last ? new Set([line]) : new Set(one.modules.at(-1).places.filter(([, s, l, c]) => where && s === where[0] && l === where[1] && c === where[2]).map(([n]) => n));
  const files = new Map();
  for (const [file, op, first, end] of one.emitted) if (lines.has(op)) files.set(file, [...(files.get(file) || []), [first, end]]);
  return files;
}

function detail(side, one, step, line, where) {
  const parts = [];
  if (line !== null && where) {
    const [source, number, column] = where;
    parts.push(el("section", { class: "panel source", "aria-label": "source" }, el("h3", {}, "source: ", el("a", { href: address({ view: "files", item: `s${source}/${number}` }) }, el("code", {}, `${DATA.sources[source].name}:${number}:${column}`))), excerpt(DATA.sources[source].text, [[number, number]], 4)));
    const files = becameOf(one, step, line, where);
    for (const [file, stretches] of files) parts.push(el("section", { class: "panel emitted", "aria-label": "emitted lines" }, el("h3", {}, "emitted: ", el("a", { href: address({ view: "files", item: `f${file}/${stretches[0][0]}` }) }, el("code", {}, `${DATA.files[file].name}:${stretches.map(([a, b]) => (a === b ? a : `${a}–${b}`)).slice(0, 6).join(", ")}${stretches.length > 6 ? ", …" : ""}`))), excerpt(DATA.files[file].text, stretches.slice(0, 12), 1)));
    const costs = [];
    if (step.module === one.modules.length - 1 && one.clock) for (const row of one.clock.rows) if (row.lines.includes(line)) costs.push(el("p", {}, `${count(row.cost)} cycles for ${row.op}, ${row.times} times; no fewer than ${count(row.bound)}`));
    if (one.costs && one.modules[step.module].level === one.costs.level) for (const row of one.costs.rows) if (row.lines.includes(line)) costs.push(el("p", {}, `${amount(row.parts.reduce((a, b) => a + b, 0), one.costs.unit)} predicted for ${row.op}, ${row.times} times`));
    if (costs.length) parts.push(el("section", { class: "panel" }, el("h3", {}, "cost"), costs));
    const through = stepsOf(one).filter((s) => s.module !== s.before || s.number === 0).map((s) => [s, one.modules[s.module].places.filter(([, a, b, c]) => a === source && b === number && c === column)]).filter(([, ops]) => ops.length);
    parts.push(el("section", { class: "panel" }, el("h3", {}, "ops of this place, pass by pass"), el("ul", {}, through.map(([s, ops]) => el("li", {}, lineLink(ops[0][0], `${ops.length} after ${s.name.replace(/\{.*\}$/, "")}`, s.number))))));
    const here = DATA.messages.filter((m) => m.place && m.place[0] === source && m.place[1] === number);
    if (here.length) parts.push(el("section", { class: "panel" }, el("h3", {}, "said of this place"), here.map((m) => messageNode(m))));
  } else {
    parts.push(el("p", { class: "soft" }, "Choose an op to see where it comes from and what it became."));
  }
  const said = DATA.messages.filter((m) => m.pass && m.pass === step.pass && m.phase === one.name);
  if (said.length) parts.push(el("section", { class: "panel" }, el("h3", {}, `what ${step.name.replace(/\{.*\}$/, "")} said`), said.map((m) => messageNode(m))));
  side.replaceChildren(...parts);
}

function messageNode(message, step) {
  const where = message.place ? el("code", {}, ` ${DATA.sources[message.place[0]].name}:${message.place[1]}`) : null;
  return el("div", { class: `message ${message.severity}` }, step ? el("span", { class: "soft" }, `${step}: `) : null, el("b", {}, message.code), ` ${message.message}`, where, message.notes.map((note) => el("div", { class: "soft" }, note)), message.help ? el("div", { class: "soft" }, message.help) : null);
}
