// The explorer of draft trees. Joined from the files of this folder into one function; nothing here asks the network
// for anything, and nothing from the data is ever parsed as markup: all of it goes through text nodes.

const SVG_SPACE = "http://www.w3.org/2000/svg";

// An element. `attributes`: on* are listeners, `style` is an object; null and false are left out.
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_SPACE, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const counted = (number, name, many = `${name}s`) => `${number} ${number === 1 ? name : many}`;

// Two decimals as Python writes them, so that chat and explorer show the same τ: of two numbers that are equally near,
// the one with an even last digit. Only odd eighths lie in the middle; toFixed would round them up.
function hundredths(value) {
  const middle = Math.abs((value * 8) % 2) === 1;
  return (middle ? (2 * Math.round(value * 50)) / 100 : value).toFixed(2);
}

// 0.83; 0.004; <0.0001
function probability(value) {
  if (value === null) return "unknown";
  if (value >= 0.9995) return "1.00";
  if (value >= 0.01) return value.toFixed(2);
  return value >= 0.0001 ? String(Number(value.toPrecision(1))) : "<0.0001";
}

// The same in as little room as there is: .83
function shortProbability(value) {
  if (value === null) return "?";
  if (value >= 0.995) return "1.0";
  return value >= 0.005 ? value.toFixed(2).slice(1) : "<.01";
}

function duration(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 0.01 ? `${Math.round(seconds * 1000)} ms` : `${(seconds * 1000).toFixed(1)} ms`;
}

const percent = (share) => `${Math.round(share * 100)} %`;

let lastId = 0;
const newId = (word) => `ee-${word}-${(lastId += 1)}`;

const calmly = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
