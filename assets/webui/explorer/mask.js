// The attention mask of the flattened tree: row i has a 1 where node i sees node j, its ancestors and itself.

const MOST_ROWS = 160;
const DIGITS_UP_TO = 26;
const NAMES_UP_TO = 60;
const HEADING_WIDTH = 110; // pixels of “nodes of the tree”

class MaskView {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.cells = new Cells();
    this.cells.element.setAttribute("aria-hidden", "true");
    this.lit = new Cells();
    change(this.lit.element, { class: "ee-cells ee-row", id: newId("row"), role: "option" });
    // A listbox with the one row that is looked at, which tells its place: to hear, as good as one with all rows.
    this.matrix = make(
      "div",
      {
        class: "ee-matrix",
        role: "listbox",
        "aria-label": "Attention mask, a row for each node",
        tabindex: "0",
        onkeydown: (event) => this.press(event),
        onpointermove: (event) => this.point(event),
        onpointerleave: () => this.select(null),
        onfocus: () => this.select(this.rows[this.place]),
        onblur: () => this.select(null),
      },
      make(
        "div",
        { class: "ee-matrix-head", "aria-hidden": "true" },
        make("span", {}, "text"),
        make("span", {}, "nodes of the tree"),
      ),
      this.cells.element,
      this.lit.element,
    );
    this.holder = make("div", { class: "ee-mask" }, this.matrix);
    this.sentence = make("p", { class: "ee-note", "aria-live": "polite" });
    this.intro = make("p", { class: "ee-prose" });
    this.element = make("div", {}, this.intro, make("div", { class: "ee-columns" }, this.holder, this.sentence));
  }

  show({ run, index }) {
    const cycle = run.cycles[index];
    const { tree } = cycle;
    if (tree && tree === this.tree) return;
    this.tree = tree;
    this.holder.hidden = !tree;
    if (!tree) {
      replace(this.intro, "There is no tree in this cycle, so there is no mask.");
      replace(this.sentence);
      return;
    }
    const size = Math.min(tree.kept.length, MOST_ROWS);
    this.before = (isCount(run.about.prompt_tokens) ? run.about.prompt_tokens : 0) + cycle.start - 1;
    replace(
      this.intro,
      "The tree is flattened into one batch of ",
      make("strong", {}, counted(tree.kept.length, "row")),
      `, and the target reads ${tree.kept.length === 1 ? "it" : "them"} in a single pass. ${size <= DIGITS_UP_TO ? "A 1 means" : "A filled square is a 1"}: this row sees that node. Every row also sees the `,
      make("strong", {}, counted(Math.max(this.before, 0), "token")),
      " in front of the root.",
      size < tree.kept.length ? ` The first ${size} rows are drawn.` : "",
    );
    this.rows = tree.kept.slice(0, size);
    this.place = Math.min(this.place ?? 0, size - 1);
    this.lay(size);
    this.cells.show(this.rows, this.grid);
    this.light(null);
  }

  // How large a cell of so many rows is, and what there is room for.
  lay(size) {
    if (this.grid && this.grid.size === size) return;
    const cell = clamp(Math.floor(430 / size), 9, 22);
    const left = size <= NAMES_UP_TO ? NAMES : 8;
    this.grid = { size, cell, left, digits: size <= DIGITS_UP_TO };
    const measures = { cell, left, start: left + PREFIX + 6, font: Math.min(cell - 2, 12) };
    for (const [name, pixels] of Object.entries(measures)) this.matrix.style.setProperty(`--${name}`, `${pixels}px`);
    Object.assign(this.matrix.style, { width: `${measures.start + Math.max(size * cell + 4, HEADING_WIDTH)}px` });
  }

  // Light the row of a node that was pointed at, here or in the tree.
  light(node) {
    if (!this.tree) return;
    const row = this.rows.indexOf(node);
    const on = row >= 0;
    if (on) this.place = row;
    const { element } = this.lit;
    this.lit.show([this.rows[this.place]], this.grid);
    element.style.top = `${HEADING + this.place * this.grid.cell}px`;
    element.classList.toggle("ee-on", on);
    change(element, {
      "aria-label": this.sees(this.rows[this.place]),
      "aria-posinset": this.place + 1,
      "aria-selected": on,
      "aria-setsize": this.rows.length,
      "data-row": this.place,
    });
    change(this.matrix, { "aria-activedescendant": on ? element.id : null });
    say(this.sentence, this.sees(node));
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
    const rest = others ? `, and ${others === 1 ? "not the other node" : `none of the other ${others} nodes`}` : "";
    return `Row ${node.slot}, “${label(node.text)}”, sees the text${ancestors} and itself${rest}.${place}`;
  }

  select(node) {
    this.pointed = node;
    this.light(node);
    this.onSelect(node);
  }

  point(event) {
    const down = event.clientY - this.matrix.getBoundingClientRect().top - HEADING;
    const node = this.rows[Math.floor(down / this.grid.cell)] ?? null;
    if (node !== this.pointed) this.select(node);
  }

  press(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? this.rows.length - 1 : by ? this.place + by : null;
    if (to === null) return;
    event.preventDefault();
    event.stopPropagation();
    this.select(this.rows[clamp(to, 0, this.rows.length - 1)]);
  }
}
