"use strict";
// What all parts of the page use: elements, colours, numbers, and where one is.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Okabe and Ito's colours, which people with any colour vision tell apart.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"];
const FREE = "#9aa3ad55";
// A ramp that grows lighter from end to end, so that it also reads in grey.
const RAMP = [[68, 1, 84], [70, 50, 127], [54, 92, 141], [39, 127, 142], [31, 161, 135], [74, 194, 109], [159, 218, 58], [253, 231, 37]];

function ramp(share) {
  const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low)));
}

function el(tag, given, ...children) {
  const found = document.createElement(tag);
  for (const [key, value] of Object.entries(given || {})) {
    if (key === "class") found.className = value;
    else if (key === "style") Object.assign(found.style, value);
    else if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else if (key in found && typeof value !== "string") found[key] = value;
    else found.setAttribute(key, value);
  }
  return put(found, ...children);
}

// Nodes and texts at the end of a node; nothing stands for nothing.
function put(node, ...children) {
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false).map((one) => (one instanceof Node ? one : String(one))));
  return node;
}

function drawn(tag, given, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(given || {})) {
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else found.setAttribute(key, value);
  }
  found.append(...children);
  return found;
}

function count(number) {
  if (number === null || number === undefined) return "–";
  if (Number.isInteger(number)) return number.toLocaleString("en-US");
  return Math.abs(number) >= 100 ? Math.round(number).toLocaleString("en-US") : String(Number(number.toPrecision(4)));
}

function amount(number, unit) {
  if (unit !== "s" && unit !== "seconds") return `${count(number)} ${unit}`;
  const [scale, name] = number >= 1 ? [1, "s"] : number >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((number * scale).toPrecision(4))} ${name}`;
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([name, color]) => el("span", {}, el("i", { style: { background: color } }), name)));
}

const tip = document.getElementById("tip");
function tell(event, text) {
  tip.textContent = text;
  tip.hidden = !text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - box.height - 8)}px`;
}
function untell() { tip.hidden = true; }
function telling(node, text) {
  node.addEventListener("mousemove", (event) => tell(event, typeof text === "function" ? text(event) : text));
  node.addEventListener("mouseleave", untell);
  return node;
}

// Where one is: a view, a phase, and what is chosen there; the address has it, so that links work.
const place = { view: "overview", phase: 0, step: null, line: null, item: null };

function address(given) {
  const next = { ...place, step: null, line: null, item: null, ...given };
  const words = [next.view, next.phase];
  if (next.view === "passes") words.push(next.step ?? "", next.line ?? "");
  else if (next.item !== null) words.push(next.item);
  return `#${words.join("/")}`;
}
function go(given) { location.hash = address(given); }
function readAddress(known) {
  const [view, phase, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  const number = (text) => (text === undefined || text === "" || Number.isNaN(Number(text)) ? null : Number(text));
  place.view = known.includes(view) ? view : known[0];
  place.phase = Math.min(number(phase) ?? 0, Math.max(DATA.phases.length - 1, 0));
  place.step = place.view === "passes" ? number(rest[0]) : null;
  place.line = place.view === "passes" ? number(rest[1]) : null;
  place.item = place.view !== "passes" && rest[0] !== undefined ? rest.join("/") : null;
}
function phase() { return DATA.phases[place.phase]; }
function lineLink(line, text, step) {
  const at = step ?? phase().steps.length - 1;
  return el("a", { href: address({ view: "passes", step: at, line }) }, text ?? `line ${line}`);
}
function lineText(line) {
  const all = phase().modules.at(-1).text.split("\n");
  return (all[line - 1] || "").trim();
}

// Tokens of the text of a module, of a source or of an emitted file.
const TOKENS = /(%[\w.]+)|(@[\w.]+)|(\/\/.*$|#.*$)|\b((?:graph|mesh|tile|task)\.\w+|func|program|module|buffer|channel|port|constant|dims|options|device|model|main|repeat|param|return|fn|const|var|if|else|for|while|switch|int|float|def)\b/g;
function painted(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const kind = match[1] ? "v" : match[2] ? "s" : match[3] ? "n" : "w";
    parts.push(el("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

// A table whose columns are (heading, of a row what it shows, of a row what it is sorted by).
function table(columns, rows, order) {
  const body = el("tbody");
  let sorted = order ?? null, down = true;
  const fill = () => {
    const shown = sorted === null ? rows : [...rows].sort((a, b) => {
      const [one, other] = [columns[sorted][2](a), columns[sorted][2](b)];
      const less = typeof one === "number" ? other - one : String(one).localeCompare(String(other));
      return down ? less : -less;
    });
    body.replaceChildren(...shown.map((row) => el("tr", {}, columns.map(([, cell, key]) => {
      const what = cell(row);
      return el("td", { class: key && typeof key(row) === "number" ? "num" : "" }, what);
    }))));
  };
  const head = el("tr", {}, columns.map(([name, , key], number) => el("th", { class: key && rows.length && typeof key(rows[0]) === "number" ? "num" : "" },
    key ? el("button", { type: "button", title: "sort", onclick: () => { down = sorted === number ? !down : true; sorted = number; fill(); } }, name) : name)));
  fill();
  return el("table", {}, el("thead", {}, head), body);
}
