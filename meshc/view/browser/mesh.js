// Layouts of values and routes of channels over the cores. Cores that hold the same are a class of one colour.

let shownRegion = 0;

function partAt(parts, group, row, column, mesh) {
  if (!group.axis) return 0;
  const own = parts[group.axis], at = (axis) => (axis.whole === mesh.down ? row : axis.whole === mesh.across ? column : shownRegion);
  let part = own.part[at(own)];
  if (group.skew) { const other = parts[group.skew]; part = (part + other.part[at(other)]) % group.parts; }
  return Math.floor(part / group.copies);
}

function heldWords(group, part) {
  const all = group.extents.reduce((a, b) => a * b, 1), name = group.dims.join(" × ");
  if (!group.axis) return `${name}: all ${count(all)}`;
  if (group.kind === "block") {
    const first = part * group.block, last = Math.min(first + group.block, all) - 1;
    return first > last ? `${name}: nothing but padding` : `${name}: ${count(first)} to ${count(last)} of ${count(all)}`;
  }
  if (group.kind === "cyclic") return `${name}: ${part}, ${part + group.parts}, … (${group.block} of ${count(all)})`;
  return `${name}: up to ${group.block} of ${count(all)}, handed on from part to part (part ${part})`;
}

function layoutsView(main) {
  const found = phase().layouts;
  if (!found) { put(main, el("p", {}, "Nothing of this phase is laid out over a mesh: it has no mesh level.")); return; }
  const list = el("div"), right = el("div");
  const filter = el("input", { type: "search", placeholder: "filter", "aria-label": "filter values" });
  const [number, row, column] = (place.item ?? "0").split("/").map((words) => Number(words) || 0);
  const chosen = Math.min(number, found.values.length - 1);
  const names = el("ul", { class: "list" });
  const fill = () => names.replaceChildren(...found.values.map((value, n) => [value, n]).filter(([value]) => value.name.includes(filter.value) || value.type.includes(filter.value)).map(([value, n]) =>
    el("li", {}, el("button", { type: "button", "aria-current": String(n === chosen), title: value.type, onclick: () => go({ view: "layouts", item: n }) }, el("span", { class: "name mono" }, `%${value.name}`), el("span", { class: "soft" }, value.role)))));
  filter.addEventListener("input", fill);
  fill();
  put(list, el("div", { class: "tools" }, filter), names);
  put(right, layoutPicture(found, found.values[chosen], { row: row ?? 0, column: column ?? 0 }));
  put(main, el("div", { class: "columns sided" }, list, right));
}

function layoutPicture(found, value, cursor) {
  const { mesh, parts } = found, box = el("div");
  const split = value.groups.filter((group) => group.axis);
  const down = split.filter((g) => parts[g.axis].whole === mesh.down), across = split.filter((g) => parts[g.axis].whole === mesh.across);
  const share = (groups, row, column) => {
    let index = 0, size = 1;
    for (const g of groups) { const many = Math.ceil(g.parts / g.copies); index = index * many + partAt(parts, g, row, column, mesh); size *= many; }
    return size > 1 ? index / (size - 1) : 0;
  };
  const colorOf = (row, column) => {
    if (value.roots.some((axis) => parts[axis].part[parts[axis].whole === mesh.down ? row : column] !== 0)) return null;
    if (!split.length) return [86, 180, 233];
    if (!down.length) return ramp(share(across, row, column));
    if (!across.length) return ramp(share(down, row, column));
    const light = 0.35 + 0.65 * share(down, row, column);
    return ramp(share(across, row, column)).map((c) => Math.round(c * light + 255 * (1 - light) * 0.15));
  };
  const cell = Math.max(1, Math.min(28, Math.floor(560 / Math.max(mesh.columns, mesh.rows))));
  const canvas = el("canvas", { width: mesh.columns * cell, height: mesh.rows * cell, role: "img", tabindex: 0, "aria-label": `layout of ${value.name}` });
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(canvas.width, canvas.height);
  for (let y = 0; y < canvas.height; y++) for (let x = 0; x < canvas.width; x++) {
    const edge = cell > 5 && (x % cell === cell - 1 || y % cell === cell - 1);
    const color = edge ? null : colorOf(Math.floor(y / cell), Math.floor(x / cell));
    pixels.data.set(color ? [...color, 255] : [0, 0, 0, 0], 4 * (y * canvas.width + x));
  }
  pen.putImageData(pixels, 0, 0);
  const at = (row, column) => {
    const away = value.roots.filter((axis) => parts[axis].part[parts[axis].whole === mesh.down ? row : column] !== 0);
    const where = `core (${mesh.down} ${row}, ${mesh.across} ${column})`;
    if (away.length) return `${where}\nhas nothing: only the first of ${away.join(", ")} has it`;
    return [where, ...value.groups.map((g) => heldWords(g, partAt(parts, g, row, column, mesh))), ...value.partial.map((axis) => `a part of the sum over ${axis}`)].join("\n");
  };
  const words = el("pre", { class: "panel held", "aria-live": "polite" }, at(cursor.row, cursor.column));
  const show = (event) => {
    const frame = canvas.getBoundingClientRect();
    cursor.column = Math.max(0, Math.min(mesh.columns - 1, Math.floor((event.clientX - frame.left) / frame.width * mesh.columns)));
    cursor.row = Math.max(0, Math.min(mesh.rows - 1, Math.floor((event.clientY - frame.top) / frame.height * mesh.rows)));
    words.textContent = at(cursor.row, cursor.column);
    tell(event, words.textContent);
  };
  canvas.addEventListener("mousemove", show);
  canvas.addEventListener("mouseleave", untell);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    cursor.row = Math.max(0, Math.min(mesh.rows - 1, cursor.row + move[0]));
    cursor.column = Math.max(0, Math.min(mesh.columns - 1, cursor.column + move[1]));
    words.textContent = at(cursor.row, cursor.column);
  });
  const dealt = [...down, ...across], classes = dealt.reduce((all, g) => all * Math.ceil(g.parts / g.copies), 1), same = Math.round(mesh.rows * mesh.columns / classes);
  const regions = mesh.regions > 1 && dealt.length < split.length ? el("p", {}, "region ", el("select", { "aria-label": "region", onchange: (event) => { shownRegion = Number(event.target.value); box.replaceWith(layoutPicture(found, value, cursor)); } }, Array.from({ length: mesh.regions }, (_, n) => el("option", { value: String(n), selected: n === shownRegion }, n)))) : null;
  const gradient = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c.join(",")})`).join(", ")})`;
  const axesWords = split.map((g) => `${g.dims.join(" × ")} over ${g.axis}`);
  const meshStep = stepsOf(phase()).findLast((step) => phase().modules[step.module].level === "mesh");
  put(box, el("h2", {}, el("code", {}, `%${value.name}`), " ", value.line ? lineLink(value.line, "in the text", meshStep.number) : el("span", { class: "soft" }, value.role)),
    el("p", {}, el("code", {}, value.type)), el("p", {}, `${count(value.bytes)} bytes on a core. ${split.length ? `${count(classes)} classes of cores, ${axesWords.join(", ")}; ${same === 1 ? "one core has each" : `${count(same)} cores have the same`}.` : `All ${count(mesh.rows * mesh.columns)} cores hold all of it.`}`),
    regions, canvas,
    split.length ? el("div", { class: "legend" }, "first part ", el("span", { style: { display: "inline-block", width: "130px", height: "12px", background: gradient } }), " last part", down.length && across.length ? el("span", {}, `; darker: lower parts along ${mesh.down}`) : null, value.roots.length ? el("span", {}, `; empty: only the first of ${value.roots.join(", ")} has it`) : null) : null,
    el("p", { class: "soft" }, `${mesh.columns} columns (${mesh.across}, to the right) × ${mesh.rows} rows (${mesh.down}, downwards)${mesh.regions > 1 ? `, ${mesh.regions} such regions` : ""}. Hover, or use the arrow keys.`), words);
  return box;
}

const ROLES = { S: ["sends", COLORS[0]], R: ["receives", COLORS[1]], B: ["sends and receives", COLORS[2]], P: ["lets pass", "#9aa3ad"], "-": ["nothing", "transparent"] };

function routesView(main) {
  const found = phase().routes;
  if (!found || !found.channels.length) { put(main, el("p", {}, "This phase has no channels between cores.")); return; }
  const chosen = Math.max(0, found.channels.findIndex((one) => one.name === place.item));
  const list = el("div", {}, el("h3", {}, "channels"), el("ul", { class: "list" }, found.channels.map((one, n) => el("li", {}, el("button", { type: "button", "aria-current": String(n === chosen), onclick: () => go({ view: "routes", item: one.name }) }, el("span", { class: "name mono" }, `@${one.name}`), el("span", { class: "soft" }, `${one.hops} ${one.hops === 1 ? "hop" : "hops"}`))))));
  const right = el("div", {}, channelPicture(found.channels[chosen]), el("h2", {}, "Colors that routers know"),
    el("p", { class: "soft" }, "A row for each color, a column for each position on the axis; all lines of the axis look alike. Two colors of one router are two rows at one position."),
    Object.entries(found.colors).map(([axis, rows]) => (rows.length ? colorChart(axis, rows) : null)), legend(Object.values(ROLES).slice(0, 4)));
  put(main, el("div", { class: "columns sided" }, list, right));
}

function channelPicture(one) {
  const size = one.roles.length, step = Math.max(16, Math.min(54, 900 / size));
  const facts = [["route", one.route], ["along", one.edge ? `${one.axis}, over the edge of ${one.edge}` : one.axis], ["longest way", `${one.hops} hops`], ["colors", one.send_color === one.recv_color ? one.send_color || "–" : `${one.send_color}; receivers: ${one.recv_color}`], ["input queue", one.queue ?? "–"], ["output queue", one.output_queue ?? "–"], ["multicast", one.multicast ? "yes" : "no"]];
  if (one.turns) facts.push(["turns", `each core ${one.turns} messages at a time`]);
  const box = el("div", {}, el("h2", {}, el("code", {}, `@${one.name}`)), el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, el("code", {}, value))])),
    el("p", {}, `used on ${one.used.length === 1 ? "line " : "lines "}`, one.used.slice(0, 14).flatMap((line, n) => [n ? ", " : "", lineLink(line, String(line))]), one.used.length > 14 ? ` and ${one.used.length - 14} more` : ""));
  const shown = Math.min(size, 120), high = 92;
  const picture = drawn("svg", { width: shown * step + 20, height: high + 46, role: "img", "aria-label": `cores of a line and the messages of ${one.name}` });
  const at = (n) => 10 + (n + 0.5) * step;
  for (const [from, to] of one.pairs) {
    if (from >= shown || to >= shown) continue;
    const rise = Math.min(high - 8, 14 + Math.abs(to - from) * step * 0.28), middle = (at(from) + at(to)) / 2;
    picture.append(drawn("path", { d: `M${at(from)} ${high} Q${middle} ${high - 2 * rise + 10} ${at(to)} ${high}`, fill: "none", stroke: colorOfNumber(one.colors[from]), "stroke-width": 1.4, opacity: 0.75 }));
  }
  for (let n = 0; n < shown; n++) {
    const [name, color] = ROLES[one.roles[n]], node = drawn("rect", { x: 10 + n * step + 1, y: high, width: step - 2, height: 18, rx: 3, fill: color, stroke: "var(--line)" });
    picture.append(telling(node, `${one.axis} ${n}: ${name}${one.colors[n] >= 0 && "SB".includes(one.roles[n]) ? `, color ${one.colors[n]}` : ""}`));
    if (n % Math.ceil(26 / step) === 0) { const label = drawn("text", { x: at(n), y: high + 34, class: "label", "text-anchor": "middle" }); label.textContent = n; picture.append(label); }
  }
  put(box, el("div", { style: { overflowX: "auto" } }, picture));
  if (size > shown) put(box, el("p", { class: "soft" }, `The first ${shown} of ${size} cores of a line.`));
  const colors = [...new Set(one.colors.filter((c, n) => c >= 0 && "SB".includes(one.roles[n])))].sort((a, b) => a - b);
  put(box, legend([...Object.entries(ROLES).filter(([key]) => one.roles.includes(key)).map(([, entry]) => entry), ...colors.map((c) => [`arcs: color ${c}`, colorOfNumber(c)])]));
  return box;
}

function colorOfNumber(color) { return color === undefined || color < 0 ? "var(--soft)" : COLORS[color % COLORS.length]; }

function colorChart(axis, rows) {
  const size = rows[0].roles.length, cell = Math.max(1, Math.min(16, Math.floor(860 / size))), high = 14;
  const body = rows.map((row) => {
    const canvas = el("canvas", { width: size * cell, height: high, role: "img", "aria-label": `color ${row.color} along ${axis}`, style: { border: "0", background: "transparent" } }), pen = canvas.getContext("2d");
    [...row.roles].forEach((role, n) => { pen.fillStyle = ROLES[role][1]; pen.fillRect(n * cell, 1, Math.max(cell - (cell > 3 ? 1 : 0), 1), high - 2); });
    telling(canvas, (event) => { const frame = canvas.getBoundingClientRect(), n = Math.max(0, Math.min(size - 1, Math.floor((event.clientX - frame.left) / frame.width * size))); return `${axis} ${n}, color ${row.color}: ${ROLES[row.roles[n]][0]}`; });
    return el("tr", {}, el("td", { class: "num" }, row.color), el("td", { class: "mono" }, row.channels.map((name) => `@${name}`).join(", ")), el("td", {}, canvas));
  });
  return el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "num" }, "color"), el("th", {}, "channels"), el("th", {}, `along ${axis}, ${size} cores`))), el("tbody", {}, body));
}
