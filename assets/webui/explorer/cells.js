// Rows of a 0/1 matrix as few elements: the cells of one meaning are one shape, and names and digits are lines of plain
// text set cell by cell. An element for each cell, or each row, would take longer to draw than the tree.

const PREFIX = 46; // pixels: the columns of the text in front of the root, drawn as one
const NAMES = 112;
const HEADING = 22;

class Cells {
  constructor() {
    this.names = make("pre", { class: "ee-rownames" });
    this.zeros = make("pre", { class: "ee-digits ee-zeros" });
    this.ones = make("pre", { class: "ee-digits ee-ones" });
    this.texts = make("pre", { class: "ee-digits ee-texts" });
    this.prefix = draw("path", { class: "ee-prefix" });
    this.ancestors = draw("path", { class: "ee-cell" });
    this.selves = draw("path", { class: "ee-self" });
    this.svg = draw("svg", {}, this.prefix, this.ancestors, this.selves);
    const texts = [this.names, this.texts, this.zeros, this.ones];
    // To be heard is the name of a row, not its digits.
    const parts = [this.svg, ...texts].map((part) => fill(part, { "aria-hidden": "true" }, []));
    this.element = make("div", { class: "ee-cells" }, parts);
  }

  // `nodes`: kept nodes, a row each. `grid`: {size, cell, left, digits} of the whole matrix.
  show(nodes, grid) {
    const { size, cell, left, digits } = grid;
    const start = left + PREFIX + 6;
    change(this.svg, { width: start + size * cell, height: nodes.length * cell });
    const box = (x, row, width) => `M${x + 0.5} ${row * cell + 0.5}h${width - 1}v${cell - 1}h${1 - width}z`;
    const [ancestors, selves, prefix, zeros, ones] = [[], [], [], [], []];
    nodes.forEach((node, row) => {
      const sees = seenBy(node, size);
      prefix.push(box(left, row, PREFIX));
      selves.push(box(start + node.slot * cell, row, cell));
      for (const column of sees) if (column !== node.slot) ancestors.push(box(start + column * cell, row, cell));
      if (!digits) return;
      const signs = Array.from({ length: size }, (_, column) => sees.has(column));
      ones.push(signs.map((one) => (one ? "1" : " ")).join(""));
      zeros.push(signs.map((one) => (one ? " " : "0")).join(""));
    });
    change(this.prefix, { d: prefix.join("") });
    change(this.selves, { d: selves.join("") });
    change(this.ancestors, { d: ancestors.join("") });
    say(this.ones, ones.join("\n"));
    say(this.zeros, zeros.join("\n"));
    say(this.texts, digits ? nodes.map(() => "1 … 1").join("\n") : "");
    say(this.names, left >= NAMES ? nodes.map((node) => label(node.text, 13)).join("\n") : "");
  }
}

// The columns in which a node's row has a 1.
function seenBy(node, size) {
  const seen = new Set();
  for (let one = node; one; one = one.parent) if (one.slot < size) seen.add(one.slot);
  return seen;
}
