// Timelines: what ran when, track by track.

const KIND_COLORS = [COLORS[0], COLORS[1], COLORS[3], COLORS[7], COLORS[2], COLORS[5], COLORS[4], COLORS[6]];

function timelineView(main) {
  const all = DATA.timelines.filter((one) => !one.phase || DATA.phases.length === 0 || one.phase === phase().name);
  if (!all.length) { put(main, el("p", {}, "Nothing was run, and no model of events predicts this phase. "), el("p", { class: "soft" }, "A run that is recorded brings its timeline: meshc run ... --record DIR.")); return; }
  for (const one of all) put(main, timeline(one));
}

function timeline(one) {
  const box = el("section", {}, el("h2", {}, one.name)), left = 190, rowHigh = 22;
  const canvas = el("canvas", { class: "smooth", tabindex: 0, role: "img", "aria-label": `${one.name}: + and − zoom, arrow keys move` });
  const zoom = { from: 0, to: one.total };
  const filter = el("input", { type: "search", placeholder: "find an op", "aria-label": "find an op in the timeline" });
  const colorOf = (span) => (span[4] < 0 ? ramp(0.15 + 0.7 * ((span[3] * 0.618) % 1)) : null);
  const high = one.tracks.length * rowHigh + 26;
  let wide = 0;
  function draw() {
    wide = Math.max(500, (box.clientWidth || 1000) - 2);
    const sharp = devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    canvas.width = wide * sharp; canvas.height = high * sharp;
    canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`;
    const pen = canvas.getContext("2d"), text = style.getPropertyValue("--text"), soft = style.getPropertyValue("--line");
    pen.scale(sharp, sharp);
    pen.font = "12px system-ui, sans-serif";
    const at = (time) => left + (time - zoom.from) / (zoom.to - zoom.from) * (wide - left - 8), words = filter.value.toLowerCase();
    one.tracks.forEach((name, track) => { pen.fillStyle = text; pen.fillText(String(name).slice(0, 30), 6, track * rowHigh + 15); pen.fillStyle = soft; pen.fillRect(left, (track + 1) * rowHigh - 1, wide, 1); });
    pen.save(); pen.beginPath(); pen.rect(left, 0, wide - left, high); pen.clip();
    for (const span of one.spans) {
      const [track, start, length, name, kind] = span, x = at(start), end = at(start + length);
      if (end < left || x > wide) continue;
      const found = words && one.names[name].toLowerCase().includes(words), color = colorOf(span);
      pen.globalAlpha = words && !found ? 0.18 : 1;
      pen.fillStyle = color ? `rgb(${color.join(",")})` : KIND_COLORS[kind % KIND_COLORS.length];
      pen.fillRect(x, track * rowHigh + 3, Math.max(end - x - (end - x > 3 ? 0.6 : 0), 0.6), rowHigh - 7);
      if (end - x > 46) { pen.fillStyle = "#fff"; pen.save(); pen.beginPath(); pen.rect(x, track * rowHigh, end - x - 3, rowHigh); pen.clip(); pen.fillText(one.names[name], Math.max(x, left) + 4, track * rowHigh + 15); pen.restore(); }
    }
    pen.restore();
    pen.globalAlpha = 1; pen.fillStyle = text;
    for (let n = 0; n <= 4; n++) { const time = zoom.from + (zoom.to - zoom.from) * n / 4; pen.textAlign = n === 4 ? "right" : n ? "center" : "left"; pen.fillText(amount(time, one.unit), at(time), high - 6); }
  }
  function under(event) {
    const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left, track = Math.floor((event.clientY - frame.top) / rowHigh);
    const time = zoom.from + (x - left) / (wide - left - 8) * (zoom.to - zoom.from), slack = (zoom.to - zoom.from) / wide;
    return [time, one.spans.find((span) => span[0] === track && time >= span[1] - slack && time <= span[1] + span[2] + slack)];
  }
  canvas.addEventListener("mousemove", (event) => {
    const [, span] = under(event);
    canvas.style.cursor = span && one.lines[span[3]]?.length ? "pointer" : "default";
    if (!span) return untell();
    tell(event, `${one.names[span[3]]}${span[4] >= 0 ? `: ${one.kinds[span[4]]}` : ""}\n${amount(span[2], one.unit)} from ${amount(span[1], one.unit)}`);
  });
  canvas.addEventListener("mouseleave", untell);
  canvas.addEventListener("click", (event) => { const [, span] = under(event); const line = span && one.lines[span[3]]?.[0]; if (line) go({ view: "passes", line }); });
  const scale = (factor, around) => {
    const middle = around ?? (zoom.from + zoom.to) / 2, width = Math.min((zoom.to - zoom.from) * factor, one.total);
    zoom.from = Math.max(0, Math.min(middle - (middle - zoom.from) * factor, one.total - width)); zoom.to = zoom.from + width;
    draw();
  };
  const move = (share) => { const width = zoom.to - zoom.from; zoom.from = Math.max(0, Math.min(zoom.from + share * width, one.total - width)); zoom.to = zoom.from + width; draw(); };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 800); else scale(event.deltaY > 0 ? 1.2 : 1 / 1.2, under(event)[0]); }, { passive: false });
  canvas.addEventListener("keydown", (event) => { const act = { "+": () => scale(0.7), "=": () => scale(0.7), "-": () => scale(1.4), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => scale(1e9) }[event.key]; if (act) { event.preventDefault(); act(); } });
  filter.addEventListener("input", draw);
  const button = (text, title, act) => el("button", { type: "button", title, onclick: act }, text);
  const sums = new Map();
  for (const [, , length, name, kind] of one.spans) { const key = kind < 0 ? -1 : kind; if (!sums.has(name)) sums.set(name, new Map()); sums.get(name).set(key, (sums.get(name).get(key) || 0) + length); }
  const rows = [...sums].map(([name, parts]) => ({ name, parts, whole: parts.has(-1) ? parts.get(-1) : [...parts.values()].reduce((a, b) => a + b, 0) }));
  const columns = [["op", (r) => (one.lines[r.name]?.length ? lineLink(one.lines[r.name][0], one.names[r.name]) : one.names[r.name]), (r) => one.names[r.name]], ["all", (r) => amount(r.whole, one.unit), (r) => r.whole], ...one.kinds.map((kind, n) => [kind, (r) => (r.parts.get(n) ? amount(r.parts.get(n), one.unit) : ""), (r) => r.parts.get(n) || 0])];
  put(box, one.words ? el("p", { class: "soft" }, one.words) : "", el("div", { class: "tools" }, filter, button("+", "closer", () => scale(0.6)), button("−", "farther", () => scale(1.6)), button("←", "earlier", () => move(-0.25)), button("→", "later", () => move(0.25)), button("all", "all of it", () => scale(1e9)), el("span", { class: "soft" }, amount(one.total, one.unit))), canvas,
    legend(one.kinds.map((name, n) => [name, KIND_COLORS[n % KIND_COLORS.length]])), table(columns, rows, 1), one.busy ? heatMap({ name: "Cycles in which code ran", unit: "cycles", words: "Code that stands still until words pass is counted.", rows: one.busy }) : "");
  requestAnimationFrame(draw);
  addEventListener("resize", () => { if (box.isConnected) draw(); });
  addEventListener("theme", () => { if (box.isConnected) draw(); });
  return box;
}
