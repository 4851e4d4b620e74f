// The tree as SVG. Nodes keep their elements from step to step, so that they move, not jump.

class TreeView {
  // `onSelect(node or null)`: a node is looked at.
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.shapes = new Map();
    this.focused = "n0";
    const line = (kind) => [kind, draw("path", { class: `ee-edge${kind && ` ee-${kind}`}` })];
    this.lines = Object.fromEntries(["", "weak", "to-come", "taken"].map(line)); // the accepted path lies above
    this.edges = draw("g", {}, Object.values(this.lines));
    this.boxes = draw("g", {});
    this.svg = draw("svg", { class: "ee-tree", role: "tree", "aria-label": "Draft tree" }, this.edges, this.boxes);
    this.viewport = new Viewport(this.svg, () => this.tip.place());
    this.tip = new Tip();
    this.element = make("div", { class: "ee-stage" }, this.viewport.pane, this.viewport.controls(), this.tip.element);
    this.listen();
  }

  // At the pane: Chromium makes a part of an SVG that listens for focus a stop of the tab key.
  listen() {
    const { pane } = this.viewport;
    pane.addEventListener("pointerover", (event) => this.look(event.target.closest("[data-key]")));
    pane.addEventListener("pointerleave", () => this.look(null));
    pane.addEventListener("focusin", (event) => this.enter(event.target.closest("[data-key]")));
    pane.addEventListener("focusout", () => this.look(null));
    pane.addEventListener("keydown", (event) => this.press(event));
  }

  destroy() {
    this.viewport.destroy();
  }

  // Show a tree at a step. `views`: the Views of the tree.
  show(tree, views, step, name) {
    const changed = this.tree !== tree;
    Object.assign(this, { tree, step, view: isJudged(step) ? views.judged : views.drafted });
    this.svg.setAttribute("aria-label", name);
    this.svg.dataset.step = step.kind;
    this.tip.hide();
    // Within a cycle nodes move to their new places; those of another cycle are others, and stand there at once.
    this.boxes.classList.toggle("ee-moving", !changed);
    const seen = new Set();
    for (const item of this.view.items) {
      item.look = lookOf(item, tree, step);
      seen.add(item.key);
      this.drawNode(item, item.look);
    }
    this.drawEdges();
    for (const [key, { element }] of this.shapes) {
      if (!seen.has(key)) {
        element.remove();
        this.shapes.delete(key);
      }
    }
    this.shown = this.view.items.filter((item) => item.look.look !== "ghost");
    if (!this.shown.some((item) => item.key === this.focused)) this.focused = "n0";
    this.rove();
    this.viewport.resize(this.view.size, changed);
  }

  drawNode(item, look) {
    let shape = this.shapes.get(item.key);
    if (!shape) {
      shape = new NodeShape(item.key);
      this.shapes.set(item.key, shape);
      this.boxes.append(shape.element);
    }
    shape.show(item, look, this.view.size, this.tree, this.step);
  }

  // Edges of one kind are one line with many strokes.
  drawEdges() {
    const strokes = { "": [], weak: [], "to-come": [], taken: [] };
    const kinds = { accepted: "taken", bonus: "taken", ghost: "to-come", dropped: "weak", folded: "weak" };
    for (const item of this.view.items) {
      if (item.above) strokes[(item.look.left ? "weak" : kinds[item.look.look]) ?? ""].push(edgePath(this.view.size, item.above, item));
    }
    for (const [kind, paths] of Object.entries(strokes)) change(this.lines[kind], { d: paths.join("") });
  }

  // One node can be reached with the tab key; arrow keys go on from there.
  rove() {
    for (const { key } of this.shown)
      change(this.shapes.get(key).element, { tabindex: key === this.focused ? "0" : "-1" });
  }

  enter(element) {
    if (!element) return;
    this.focused = element.dataset.key;
    this.rove();
    this.look(element);
  }

  look(element) {
    const item = element ? this.shown.find((one) => one.key === element.dataset.key) : null;
    if (item) this.tip.show(item, element, this.tree, this.step);
    else this.tip.hide();
    this.mark(item ? item.node : null);
    this.onSelect(item && item.node && !item.folded ? item.node : null);
  }

  // Light the path to a node, wherever it was pointed at.
  mark(node) {
    const path = new Set();
    for (let one = node; one; one = one.parent) path.add(`n${one.id}`);
    for (const [key, { element }] of this.shapes) element.classList.toggle("ee-lit", path.has(key));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "+": () => this.viewport.zoom(1),
      "=": () => this.viewport.zoom(1),
      "-": () => this.viewport.zoom(-1),
      0: () => this.viewport.fit(),
      Escape: () => this.tip.hide(),
    };
    const go = keys[event.key] ?? this.moves(event.key);
    if (!go) return;
    event.preventDefault();
    event.stopPropagation();
    go();
  }

  moves(key) {
    const here = this.shown.find((item) => item.key === this.focused);
    const visibleChild = here && here.children.find((item) => this.shown.includes(item));
    const column = this.shown.filter((item) => here && item.column === here.column).sort((a, b) => a.row - b.row);
    const place = column.indexOf(here);
    const to = {
      ArrowRight: visibleChild,
      ArrowLeft: here && here.above,
      ArrowUp: column[place - 1],
      ArrowDown: column[place + 1],
      Home: this.shown[0],
    };
    if (!(key in to)) return null;
    return () => to[key] && this.shapes.get(to[key].key).element.focus();
  }
}
