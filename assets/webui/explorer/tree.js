// The tree as SVG in a pane that scrolls. Nodes keep their elements from step to step, so that they move, not jump.

const ZOOMS = [0.35, 0.5, 0.65, 0.8, 1, 1.25, 1.6, 2];
const LEGIBLE = 0.8; // smaller than this only when asked for

class TreeView {
  // `onSelect(node or null)`: a node is looked at.
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.elements = new Map();
    this.scale = null; // null: as large as fits, but legible
    this.focused = "n0";
    this.edges = draw("g", { class: "ee-edges" });
    this.boxes = draw("g", {});
    this.svg = draw("svg", { class: "ee-tree", role: "tree", "aria-label": "Draft tree" }, this.edges, this.boxes);
    this.pane = make("div", { class: "ee-pane" }, this.svg);
    this.tip = make("div", { class: "ee-tip", "aria-hidden": "true" });
    this.tip.hidden = true;
    this.element = make("div", { class: "ee-stage" }, this.pane, this.controls(), this.tip);
    this.listen();
  }

  controls() {
    const button = (name, text, action) =>
      make("button", { type: "button", "aria-label": name, title: name, onclick: action }, text);
    return make(
      "div",
      { class: "ee-zoom", role: "group", "aria-label": "Zoom" },
      button("Zoom out", "−", () => this.zoom(-1)),
      button("Fit the whole tree", "Fit", () => this.fit()),
      button("Zoom in", "+", () => this.zoom(1)),
      document.fullscreenEnabled ? button("Full screen", "⛶", () => this.fill()) : null,
    );
  }

  listen() {
    this.boxes.addEventListener("pointerover", (event) => this.look(event.target.closest("[data-key]")));
    this.boxes.addEventListener("pointerleave", () => this.look(null));
    this.boxes.addEventListener("focusin", (event) => this.enter(event.target.closest("[data-key]")));
    this.boxes.addEventListener("focusout", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    this.pane.addEventListener("scroll", () => this.hideTip());
    this.pane.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.pane.addEventListener("pointerdown", (event) => this.drag(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.pane);
  }

  destroy() {
    this.observer.disconnect();
  }

  // Show a tree at a step. `views` from viewsOf.
  show(tree, views, step, name) {
    const judged = step.kind === "verify" || step.kind === "commit";
    const changed = this.tree !== tree;
    Object.assign(this, { tree, step, view: judged ? views.judged : views.drafted });
    this.svg.setAttribute("aria-label", name);
    this.svg.dataset.step = step.kind;
    this.hideTip();
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
    this.resize(changed);
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
    if (item) this.showTip(item, element);
    else this.hideTip();
    this.mark(item ? item.node : null);
    this.onSelect(item && item.node && !item.folded ? item.node : null);
  }

  // Light the path to a node, wherever it was pointed at.
  mark(node) {
    const path = new Set();
    for (let one = node; one; one = one.parent) path.add(`n${one.id}`);
    for (const [key, element] of this.elements) element.classList.toggle("ee-lit", path.has(key));
  }

  showTip(item, element) {
    const rows = facts(item, this.tree, this.step);
    const title = item.node && !item.folded ? item.node.text : item.folded ? item.label : this.tree.bonus;
    replace(
      this.tip,
      make(
        "p",
        { class: "ee-tip-title" },
        make("span", { class: "ee-token" }, item.folded ? title : label(title, 40)),
        ` ${LOOKS[item.look.look].word}`,
      ),
      make(
        "dl",
        {},
        rows.map(([name, value, why]) => [make("dt", {}, name), make("dd", {}, make("b", {}, value), ` ${why}`)]),
      ),
    );
    this.tip.hidden = false;
    const box = element.getBoundingClientRect();
    const stage = this.element.getBoundingClientRect();
    const left = clamp(box.left - stage.left, 4, Math.max(stage.width - this.tip.offsetWidth - 4, 4));
    const below = box.bottom - stage.top + 8;
    const fits = below + this.tip.offsetHeight <= stage.height;
    const top = fits ? below : Math.max(box.top - stage.top - this.tip.offsetHeight - 8, 4);
    Object.assign(this.tip.style, { left: `${left}px`, top: `${top}px` });
  }

  hideTip() {
    this.tip.hidden = true;
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "+": () => this.zoom(1),
      "=": () => this.zoom(1),
      "-": () => this.zoom(-1),
      0: () => this.fit(),
      Escape: () => this.hideTip(),
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

  fitting() {
    const { width, height } = this.view.size;
    const room = { width: this.pane.clientWidth, height: this.pane.clientHeight };
    return room.width ? Math.min(room.width / width, room.height / height) : 1;
  }

  // The scale in use: what was asked for, else what fits, within what can be read.
  resize(anew = false) {
    if (!this.view) return;
    const scale = this.scale ?? clamp(this.fitting(), LEGIBLE, 1.25);
    const { width, height } = this.view.size;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    Object.assign(this.svg.style, { width: `${width * scale}px`, height: `${height * scale}px` });
    this.used = scale;
    if (anew) Object.assign(this.pane, { scrollLeft: 0, scrollTop: 0 });
  }

  zoom(direction) {
    const next =
      direction > 0
        ? ZOOMS.find((zoom) => zoom > this.used + 0.01)
        : ZOOMS.filter((zoom) => zoom < this.used - 0.01).pop();
    if (!next) return;
    const { pane } = this;
    const centre = [
      (pane.scrollLeft + pane.clientWidth / 2) / this.used,
      (pane.scrollTop + pane.clientHeight / 2) / this.used,
    ];
    this.scale = next;
    this.resize();
    Object.assign(pane, {
      scrollLeft: centre[0] * next - pane.clientWidth / 2,
      scrollTop: centre[1] * next - pane.clientHeight / 2,
    });
  }

  fit() {
    this.scale = Math.min(this.fitting(), 1.6);
    this.resize(true);
  }

  // The whole explorer on the whole screen, for a lecture hall; the same button goes back.
  fill() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.element.closest(".ee").requestFullscreen();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1 : -1);
  }

  // With the mouse the pane is moved by dragging; a finger scrolls it anyway.
  drag(event) {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    const { pane } = this;
    const from = [event.clientX + pane.scrollLeft, event.clientY + pane.scrollTop];
    const move = (to) => Object.assign(pane, { scrollLeft: from[0] - to.clientX, scrollTop: from[1] - to.clientY });
    const stop = () => {
      window.removeEventListener("pointermove", move);
      pane.classList.remove("ee-dragging");
    };
    pane.classList.add("ee-dragging");
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop, { once: true });
  }
}
