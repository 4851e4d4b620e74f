// The tree as SVG. Nodes keep their elements from step to step, so that they move, not jump.

class TreeView {
  // `onSelect(node or null)`: a node is looked at.
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.elements = new Map();
    this.focused = "n0";
    this.edges = draw("g", { class: "ee-edges" });
    this.boxes = draw("g", {});
    this.svg = draw("svg", { class: "ee-tree", role: "tree", "aria-label": "Draft tree" }, this.edges, this.boxes);
    this.viewport = new Viewport(this.svg, () => this.tip.place());
    this.tip = new Tip();
    this.element = make("div", { class: "ee-stage" }, this.viewport.pane, this.viewport.controls(), this.tip.element);
    this.listen();
  }

  listen() {
    this.boxes.addEventListener("pointerover", (event) => this.look(event.target.closest("[data-key]")));
    this.boxes.addEventListener("pointerleave", () => this.look(null));
    this.boxes.addEventListener("focusin", (event) => this.enter(event.target.closest("[data-key]")));
    this.boxes.addEventListener("focusout", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
  }

  destroy() {
    this.viewport.destroy();
  }

  // Show a tree at a step. `views`: the Views of the tree.
  show(tree, views, step, name) {
    const judged = step.kind === "verify" || step.kind === "commit";
    const changed = this.tree !== tree;
    Object.assign(this, { tree, step, view: judged ? views.judged : views.drafted });
    this.svg.setAttribute("aria-label", name);
    this.svg.dataset.step = step.kind;
    this.tip.hide();
    const seen = new Set();
    this.edges.replaceChildren();
    for (const item of this.view.items) {
      const look = lookOf(item, tree, step);
      item.look = look;
      seen.add(item.key);
      this.drawNode(item, look);
      if (item.above) this.drawEdge(item, look);
    }
    for (const [key, element] of this.elements) {
      if (!seen.has(key)) {
        element.remove();
        this.elements.delete(key);
      }
    }
    this.shown = this.view.items.filter((item) => item.look.look !== "ghost");
    if (!this.shown.some((item) => item.key === this.focused)) this.focused = "n0";
    this.rove();
    this.viewport.resize(this.view.size, changed);
  }

  drawNode(item, look) {
    const { size } = this.view;
    const width = size.widths[item.column];
    let element = this.elements.get(item.key);
    if (!element) {
      element = draw("g", { "data-key": item.key });
      this.elements.set(item.key, element);
      this.boxes.append(element);
    }
    element.setAttribute("class", `ee-node ee-${look.look}${look.faint ? " ee-faint" : ""}`);
    if (look.look === "ghost") {
      for (const name of ["role", "aria-level", "aria-label", "tabindex"]) element.removeAttribute(name);
      element.setAttribute("aria-hidden", "true");
    } else {
      element.removeAttribute("aria-hidden");
      element.setAttribute("role", "treeitem");
      element.setAttribute("aria-level", String(item.column + 1));
      element.setAttribute("aria-label", spokenNode(item, this.tree, look));
    }
    element.style.transform = `translate(${size.lefts[item.column]}px, ${boxTop(item.row)}px)`;
    if (look.look === "ghost") {
      element.replaceChildren(draw("rect", { class: "ee-box", width, height: BOX, rx: 6 }));
      return;
    }
    const round = look.look === "bonus" || look.look === "folded" ? BOX / 2 : look.look === "root" ? 3 : 6;
    const number = look.number === null ? "" : shortProbability(look.number);
    const share = look.number === null ? 0 : clamp(look.number, 0, 1);
    element.replaceChildren(
      draw("rect", { class: "ee-box", width, height: BOX, rx: round }),
      look.number === null
        ? ""
        : draw("rect", { class: "ee-bar", x: 6, y: BOX - 4, height: 2, width: (width - 12) * share, rx: 1 }),
      draw("text", { class: "ee-sign", x: 13, y: 16.5, "text-anchor": "middle" }, LOOKS[look.look].sign),
      draw("text", { class: "ee-label", x: look.look === "folded" ? 10 : 23, y: 16.5 }, labelSpans(item.label)),
      draw("text", { class: "ee-number", x: width - 7, y: 16, "text-anchor": "end" }, number),
    );
  }

  drawEdge(item, look) {
    const accepted = look.look === "accepted" || look.look === "bonus";
    const kind = accepted
      ? " ee-taken"
      : look.look === "ghost"
        ? " ee-to-come"
        : look.look === "dropped" || look.look === "folded"
          ? " ee-weak"
          : "";
    this.edges.append(draw("path", { class: `ee-edge${kind}`, d: edgePath(this.view.size, item.above, item) }));
  }

  // One node can be reached with the tab key; arrow keys go on from there.
  rove() {
    for (const { key } of this.shown)
      this.elements.get(key).setAttribute("tabindex", key === this.focused ? "0" : "-1");
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
    for (const [key, element] of this.elements) element.classList.toggle("ee-lit", path.has(key));
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
    return () => to[key] && this.elements.get(to[key].key).focus();
  }
}
