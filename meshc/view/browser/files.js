// Sources and emitted files whole; a line leads to the ops that it is of.

function filesView(main) {
  const one = phase(), texts = [
    ...DATA.sources.map((source, n) => ({ key: `s${n}`, kind: "source", ...source })),
    ...DATA.files.map((file, n) => ({ key: `f${n}`, kind: "emitted", ...file })).filter((file, n) => one.emitted.some(([number]) => number === n)),
  ];
  const [key, line] = (place.item ?? "").split("/"), chosen = texts.find((text) => text.key === key) ?? texts[0];
  const ops = opsOfLines(one, chosen), wanted = Number(line) || 0;
  const list = el("ul", { class: "list" }, texts.map((text) => el("li", {}, el("button", { type: "button", "aria-current": String(text === chosen), onclick: () => go({ view: "files", item: text.key }) }, el("span", { class: "name mono" }, text.name), el("span", { class: "soft" }, text.kind)))));
  const rows = chosen.text.split("\n").map((words, n) => {
    const mine = ops.get(n + 1) ?? [], open = () => go({ view: "passes", line: mine[0] });
    const row = el("div", { class: `row${mine.length ? " op" : ""}${n + 1 === wanted ? " chosen" : ""}`, onclick: () => { if (mine.length) open(); } }, el("span", { class: "no" }, n + 1), el("span", { class: "sign" }, mine.length ? "•" : ""), el("span", { class: "what" }, painted(words)));
    if (mine.length) telling(row, `${mine.length === 1 ? "op" : "ops"} on ${mine.slice(0, 4).map((at) => `line ${at}: ${lineText(at).slice(0, 90)}`).join("\n")}${mine.length > 4 ? `\nand ${mine.length - 4} more` : ""}`);
    return row;
  });
  put(main, el("div", { class: "columns sided" }, el("div", {}, list, el("p", { class: "soft" }, "• marks lines of ops of the last module; choose one to see it.")), el("div", { class: "code" }, rows)));
  if (wanted) rows[wanted - 1]?.scrollIntoView({ block: "center" });
}

// Lines of ops in the last module, by the line of a source or of an emitted file; those with the fewest lines first.
function opsOfLines(one, text) {
  const found = new Map(), number = Number(text.key.slice(1));
  const add = (at, op, length) => { if (!found.has(at)) found.set(at, []); found.get(at).push([length, op]); };
  if (text.kind === "source") { for (const [op, source, at] of one.modules.at(-1).places) if (source === number) add(at, op, 1); }
  else for (const [file, op, first, last] of one.emitted) if (file === number) for (let at = first; at <= last; at++) add(at, op, last - first);
  for (const [at, mine] of found) found.set(at, [...new Set(mine.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, op]) => op))]);
  return found;
}
