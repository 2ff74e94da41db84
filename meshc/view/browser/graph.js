// The model as a graph.

const GROUPS = [
  ["products", COLORS[0], /matmul|gemm|gemv/], ["norms and softmaxes", COLORS[2], /norm|softmax|centre/],
  ["caches", COLORS[1], /append|^state$/], ["positions and masks", COLORS[3], /rope|mask/],
  ["tables, inputs and results", COLORS[4], /embed|^in$|return|arg_max|top_k/], ["element by element", COLORS[7], /./],
];
function groupOf(kind) { return GROUPS.find(([, , pattern]) => pattern.test(kind)); }

function graphView(main) {
  const graph = phase().graph;
  if (!graph) { put(main, el("p", {}, "This phase was not compiled from a graph.")); return; }
  const [wide, high, stepX, stepY] = [160, 38, 182, 66];
  const places = graph.nodes.map((node) => [node.place * stepX, node.row * stepY]);
  const left = Math.min(...places.map(([x]) => x)) - wide / 2 - 60, right = Math.max(...places.map(([x]) => x)) + wide / 2 + 60;
  const bottom = Math.max(...places.map(([, y]) => y)) + high + 30;
  const picture = drawn("svg", { viewBox: `${left} -24 ${right - left} ${bottom + 24}`, width: right - left, height: bottom + 24, role: "group", "aria-label": "graph of the model" });
  picture.append(drawn("defs", {}, Object.assign(drawn("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, drawn("path", { d: "M0 0 L8 4 L0 8 z", fill: "currentColor" })))));
  graph.loops.forEach((name, loop) => {
    const mine = graph.nodes.map((node, n) => (node.loop === loop ? places[n] : null)).filter(Boolean);
    if (!mine.length) return;
    const [x0, x1] = [Math.min(...mine.map(([x]) => x)) - wide / 2 - 50, Math.max(...mine.map(([x]) => x)) + wide / 2 + 50];
    const [y0, y1] = [Math.min(...mine.map(([, y]) => y)) - 18, Math.max(...mine.map(([, y]) => y)) + high + 14];
    const label = drawn("text", { x: x0 + 10, y: y0 + 14, class: "label" });
    label.textContent = name;
    picture.append(drawn("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, rx: 10, fill: "var(--panel)", stroke: "var(--line)", "stroke-dasharray": "5 4" }), label);
  });
  const sides = { right: 0, left: 0 };
  for (const [from, to] of graph.edges) {
    const [[x0, y0], [x1, y1]] = [places[from], places[to]], rows = [graph.nodes[from].row, graph.nodes[to].row];
    const style = { fill: "none", stroke: "var(--soft)", color: "var(--soft)", "stroke-width": 1.2, "marker-end": "url(#arrow)" };
    const between = graph.nodes.map((node, n) => (node.row > rows[0] && node.row < rows[1] ? places[n][0] : null)).filter((x) => x !== null);
    if (!between.some((x) => Math.abs(x - x1) < wide && Math.abs(x - x0) < wide)) {
      const bend = Math.max(18, (y1 - y0 - high) / 2);
      picture.append(drawn("path", { d: `M${x0} ${y0 + high} C${x0} ${y0 + high + bend} ${x1} ${y1 - bend} ${x1} ${y1}`, ...style }));
      continue;
    }
    // What goes past other boxes goes beside them.
    const side = x0 > 0 ? "right" : x0 < 0 ? "left" : sides.left < sides.right ? "left" : "right", sign = side === "right" ? 1 : -1;
    const past = Math.max(...[...between, x0, x1].map((x) => sign * x)) + wide / 2 + 12 + 9 * (sides[side]++ % 4), lane = sign * past, turn = 8;
    const [start, end] = [x0 + sign * wide / 2, x1 + sign * wide / 2], [top, foot] = [y0 + high * 0.7, y1 + high * 0.35];
    picture.append(drawn("path", { d: `M${start} ${top} H${lane - sign * turn} Q${lane} ${top} ${lane} ${top + turn} V${foot - turn} Q${lane} ${foot} ${lane - sign * turn} ${foot} H${end}`, ...style }));
  }
  const step = stepsOf(phase()).find((one) => one.module === graph.module);
  graph.nodes.forEach((node, n) => {
    const [x, y] = places[n], [, color] = groupOf(node.kind);
    const open = () => { if (node.line) go({ view: "passes", step: step.number, line: node.line }); };
    const name = drawn("text", { x: x - wide / 2 + 12, y: y + 16 }), label = drawn("text", { x: x - wide / 2 + 12, y: y + 31, class: "label" });
    name.textContent = node.line ? `${node.kind} %${node.name}`.slice(0, 24) : `%${node.name}`.slice(0, 24);
    label.textContent = node.label.slice(0, 27);
    const box = drawn("g", { class: "node", tabindex: 0, role: "link", "aria-label": `${node.kind} ${node.name}`, onclick: open, onkeydown: (event) => { if (event.key === "Enter") open(); } },
      drawn("rect", { x: x - wide / 2, y, width: wide, height: high, rx: 5, fill: "var(--back)" }), drawn("rect", { x: x - wide / 2, y, width: 5, height: high, rx: 2, fill: color, stroke: "none" }), name, label);
    picture.append(telling(box, `${node.kind} %${node.name}\n${node.label}${node.weights.length ? `\nweights: ${node.weights.join(", ")}` : ""}`));
  });
  put(main, legend(GROUPS.map(([name, color]) => [name, color])), el("p", { class: "soft" }, "Each box is an op of the graph that passes were given; choose one to see it in the text. What a loop carries from round to round joins its first round to what comes before it."), el("div", { style: { overflow: "auto" } }, picture));
}
