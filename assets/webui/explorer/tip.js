// What there is to say about a node, beside the node.

class Tip {
  constructor() {
    this.element = make("div", { class: "ee-tip", "aria-hidden": "true" });
    this.hide();
  }

  // `node`: the element of the item.
  show(item, node, tree, step) {
    const text = item.node && !item.folded ? item.node.text : tree.bonus;
    const title = item.folded ? item.label : label(text, 40);
    const rows = facts(item, tree, step).map(([name, value, why]) => [
      make("dt", {}, name),
      make("dd", {}, make("b", {}, value), ` ${why}`),
    ]);
    replace(
      this.element,
      make(
        "p",
        { class: "ee-tip-title" },
        make("span", { class: "ee-token" }, title),
        ` ${LOOKS[item.look.look].word}`,
      ),
      make("dl", {}, rows),
    );
    this.node = node;
    this.element.hidden = false;
    this.place();
  }

  // Below the node, or above it where there is no room, within the stage.
  place() {
    if (!this.node) return;
    const box = this.node.getBoundingClientRect();
    const stage = this.element.parentNode.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.element;
    const below = box.bottom - stage.top + 8;
    const top = below + offsetHeight <= stage.height ? below : Math.max(box.top - stage.top - offsetHeight - 8, 4);
    const left = clamp(box.left - stage.left, 4, Math.max(stage.width - offsetWidth - 4, 4));
    Object.assign(this.element.style, { left: `${left}px`, top: `${top}px` });
  }

  hide() {
    this.node = null;
    this.element.hidden = true;
  }
}
