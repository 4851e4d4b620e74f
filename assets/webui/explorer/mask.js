// The attention mask of the flattened tree: row i has a 1 where node i sees node j, its ancestors and itself.

const MOST_ROWS = 160;
const DIGITS_UP_TO = 26;

class MaskView {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.holder = make("div", { class: "ee-mask" });
    this.sentence = make("p", { class: "ee-note", "aria-live": "polite" });
    this.intro = make("p", { class: "ee-prose" });
    this.element = make("div", {}, this.intro, make("div", { class: "ee-columns" }, this.holder, this.sentence));
  }

  show({ run, index }) {
    const cycle = run.cycles[index];
    const { tree } = cycle;
    if (tree && tree === this.tree) return;
    this.tree = tree;
    if (!tree) {
      replace(this.intro, "There is no tree in this cycle, so there is no mask.");
      replace(this.holder);
      replace(this.sentence);
      return;
    }
    const size = Math.min(tree.kept.length, MOST_ROWS);
    this.before = (isCount(run.about.prompt_tokens) ? run.about.prompt_tokens : 0) + cycle.start - 1;
    replace(
      this.intro,
      "The tree is flattened into one batch of ",
      make("strong", {}, counted(tree.kept.length, "row")),
      ", and the target reads them in a single pass. A 1 means: this row sees that node. Every row also sees all ",
      make("strong", {}, String(Math.max(this.before, 0))),
      " tokens in front of the root.",
      size < tree.kept.length ? ` The first ${size} rows are drawn.` : "",
    );
    this.rows = tree.kept.slice(0, size);
    replace(this.holder, this.matrix(size));
    this.light(null);
  }

  matrix(size) {
    const cell = clamp(Math.floor(430 / size), 9, 22);
    const names = size <= 60;
    const left = names ? 112 : 8;
    const prefix = 46;
    const top = 22;
    const width = left + prefix + 6 + size * cell + 4;
    const svg = draw("svg", {
      class: "ee-matrix",
      role: "listbox",
      "aria-label": "Attention mask, a row for each node",
      tabindex: "0",
      viewBox: `0 0 ${width} ${top + size * cell + 4}`,
      width,
      height: top + size * cell + 4,
      onkeydown: (event) => this.press(event),
      onpointerover: (event) => this.point(event),
      onpointerleave: () => this.select(null),
      onfocus: () => this.select(this.rows[this.place ?? 0]),
      onblur: () => this.select(null),
    });
    svg.append(
      draw("text", { class: "ee-axis", x: left + prefix / 2, y: 14, "text-anchor": "middle" }, "text"),
      draw(
        "text",
        { class: "ee-axis", x: left + prefix + 6 + (size * cell) / 2, y: 14, "text-anchor": "middle" },
        "nodes of the tree",
      ),
    );
    this.lines = this.rows.map((node, row) => this.line(node, row, { cell, left, prefix, top, names, size }));
    svg.append(...this.lines);
    return svg;
  }

  line(node, row, at) {
    const y = at.top + row * at.cell;
    const seen = new Set();
    for (let one = node; one; one = one.parent) seen.add(one.slot);
    const start = at.left + at.prefix + 6;
    const digits = at.size <= DIGITS_UP_TO;
    const font = Math.min(at.cell - 2, 12);
    const line = draw("g", {
      class: "ee-row",
      id: newId("row"),
      role: "option",
      "aria-selected": "false",
      "data-row": row,
      "aria-label": this.sees(node),
    });
    line.append(draw("rect", { class: "ee-band", x: 0, y, width: start + at.size * at.cell, height: at.cell }));
    if (at.names) {
      line.append(
        draw(
          "text",
          {
            class: "ee-rowname",
            x: at.left - 6,
            y: y + at.cell / 2 + font * 0.35,
            "text-anchor": "end",
            "font-size": font,
          },
          label(node.text, 13),
        ),
      );
    }
    line.append(draw("rect", { class: "ee-prefix", x: at.left, y: y + 0.5, width: at.prefix, height: at.cell - 1 }));
    if (digits)
      line.append(
        draw(
          "text",
          {
            class: "ee-one",
            x: at.left + at.prefix / 2,
            y: y + at.cell / 2 + font * 0.35,
            "text-anchor": "middle",
            "font-size": font,
          },
          "1 … 1",
        ),
      );
    if (!digits) {
      // Without digits a row is one shape: sixty rows of single cells would take longer to draw than the tree.
      const cell = (column) =>
        `M${start + column * at.cell + 0.5} ${y + 0.5}h${at.cell - 1}v${at.cell - 1}h${1 - at.cell}z`;
      const ancestors = [...seen].filter((column) => column !== row && column < at.size);
      line.append(draw("path", { class: "ee-cell", d: ancestors.map(cell).join("") }));
      line.append(draw("path", { class: "ee-cell ee-self", d: cell(row) }));
      return line;
    }
    for (let column = 0; column < at.size; column += 1) {
      const sees = seen.has(column);
      const x = start + column * at.cell;
      if (sees)
        line.append(
          draw("rect", {
            class: column === row ? "ee-cell ee-self" : "ee-cell",
            x: x + 0.5,
            y: y + 0.5,
            width: at.cell - 1,
            height: at.cell - 1,
          }),
        );
      line.append(
        draw(
          "text",
          {
            class: sees ? "ee-one" : "ee-zero",
            x: x + at.cell / 2,
            y: y + at.cell / 2 + font * 0.35,
            "text-anchor": "middle",
            "font-size": font,
          },
          sees ? "1" : "0",
        ),
      );
    }
    return line;
  }

  // Light the row of a node that was pointed at, here or in the tree.
  light(node) {
    if (!this.tree || !this.lines) return;
    this.lines.forEach((line, row) => {
      const on = Boolean(node) && this.rows[row] === node;
      line.classList.toggle("ee-on", on);
      line.setAttribute("aria-selected", String(on));
      if (on) {
        this.place = row;
        line.parentNode.setAttribute("aria-activedescendant", line.id);
      }
    });
    replace(this.sentence, this.sees(node));
  }

  sees(node) {
    if (!node) return "Point at a row or a node, or use the arrow keys: row and node light up together.";
    if (node.slot < 0) return `“${label(node.text)}” was dropped at reranking, so it has no row.`;
    const path = [];
    for (let one = node.parent; one; one = one.parent) path.unshift(one);
    const others = this.tree.kept.length - path.length - 1;
    const ancestors = path.length ? `, ${path.map((one) => label(one.text)).join(" → ")}` : "";
    const place =
      this.before > 0 ? ` Its position is ${this.before} + ${node.depth} = ${this.before + node.depth}.` : "";
    return `Row ${node.slot}, “${label(node.text)}”, sees the text${ancestors} and itself, and none of the other ${counted(others, "node")}.${place}`;
  }

  select(node) {
    this.light(node);
    this.onSelect(node);
  }

  point(event) {
    const line = event.target.closest("[data-row]");
    if (line) this.select(this.rows[Number(line.dataset.row)]);
  }

  press(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    const to =
      event.key === "Home" ? 0 : event.key === "End" ? this.rows.length - 1 : by ? (this.place ?? 0) + by : null;
    if (to === null) return;
    event.preventDefault();
    event.stopPropagation();
    this.select(this.rows[clamp(to, 0, this.rows.length - 1)]);
  }
}
