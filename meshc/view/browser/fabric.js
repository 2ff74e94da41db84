// Maps of the cores of a simulated wafer: a colour for each number, and the routes of each color.

function fabricView(main) {
  const chosen = Math.min(Number(place.item) || 0, DATA.fabrics.length - 1), one = DATA.fabrics[chosen];
  if (DATA.fabrics.length > 1) put(main, el("label", {}, "program ", el("select", { onchange: (event) => go({ view: "fabric", item: event.target.value }) }, DATA.fabrics.map((each, n) => el("option", { value: String(n), selected: n === chosen }, each.name)))));
  else put(main, el("p", {}, one.name));
  put(main, el("div", { class: "cards" }, one.maps.map(heatMap)), routesOf(one.routes));
}

// Pixels of a core where so many rows and columns are drawn.
function cellOf(rows, most) { return Math.max(1, Math.min(24, Math.floor(most / Math.max(rows.length, rows[0].length)))); }

// A canvas with a colour for each core; hovering says `words` of its number.
function coreMap(rows, label, colorOf, words, most = 480) {
  const cell = cellOf(rows, most), canvas = el("canvas", { width: rows[0].length * cell, height: rows.length * cell, role: "img", "aria-label": label }), pen = canvas.getContext("2d");
  rows.forEach((row, y) => row.forEach((number, x) => { if (number !== null) { pen.fillStyle = colorOf(number); pen.fillRect(x * cell, y * cell, cell, cell); } }));
  return telling(canvas, (event) => {
    const frame = canvas.getBoundingClientRect(), x = Math.floor((event.clientX - frame.left) / frame.width * rows[0].length), y = Math.floor((event.clientY - frame.top) / frame.height * rows.length);
    const number = rows[y]?.[x];
    return number === undefined || number === null ? "" : `core (x ${x}, y ${y}): ${words(number)}`;
  });
}

function heatMap(one) {
  const numbers = one.rows.flat().filter((number) => number !== null), most = numbers.reduce((a, b) => Math.max(a, b), 0), sum = numbers.reduce((a, b) => a + b, 0);
  const gradient = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c.join(",")})`).join(", ")})`;
  const canvas = coreMap(one.rows, `${one.name}, core by core`, (number) => `rgb(${ramp(most ? number / most : 0).join(",")})`, (number) => `${count(number)} ${one.unit}`);
  return el("section", { class: "map" }, el("h2", {}, `${one.name}, core by core`), el("p", { class: "soft" }, `${count(sum)} ${one.unit} on ${count(numbers.length)} cores, ${count(sum / numbers.length)} on average. ${one.words}`), canvas,
    el("div", { class: "legend" }, "0 ", el("span", { style: { display: "inline-block", width: "130px", height: "12px", background: gradient } }), ` ${count(most)}`));
}

const PORTS = ["its core", "the east", "the west", "the north", "the south"];
const STEPS = [[0, 0], [1, 0], [-1, 0], [0, -1], [0, 1]];
function portsOf(bits) { return PORTS.map((_, n) => n).filter((n) => bits >> n & 1); }
function routeWords(number) {
  const [from, to] = [portsOf(number & 31), portsOf(number >> 5)].map((ports) => ports.map((n) => PORTS[n]).join(", "));
  return from || to ? `from ${from || "nowhere"} to ${to || "nowhere"}` : "no route";
}
function roleOf(number) { const [sends, receives] = [number & 1, number >> 5 & 1]; return sends && receives ? "B" : sends ? "S" : receives ? "R" : number ? "P" : "-"; }

function routesOf(routes) {
  if (!routes.length) return null;
  const cards = routes.map(({ color, rows }) => {
    const canvas = coreMap(rows, `routes of color ${color}`, (number) => ROLES[roleOf(number)][1], (number) => `color ${color}, ${routeWords(number)}`, 300), pen = canvas.getContext("2d"), cell = cellOf(rows, 300);
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
    if (cell >= 6) rows.forEach((row, y) => row.forEach((number, x) => { for (const to of portsOf((number ?? 0) >> 5)) { pen.beginPath(); pen.moveTo((x + 0.5) * cell, (y + 0.5) * cell); pen.lineTo((x + 0.5 + STEPS[to][0]) * cell, (y + 0.5 + STEPS[to][1]) * cell); pen.stroke(); } }));
    return el("figure", {}, el("figcaption", {}, `color ${color}`), canvas);
  });
  return el("section", {}, el("h2", {}, "Routes of each color, as routers had them at the end"), el("div", { class: "figures" }, cards), legend(Object.values(ROLES).slice(0, 4)));
}
