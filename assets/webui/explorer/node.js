// One node of the picture. Its elements stay from step to step and from cycle to cycle, and only what differs is set: a
// browser spends most of a redraw on laying out text, and to make sixty nodes anew would lay all of it out again.

class NodeShape {
  constructor(key) {
    this.box = draw("rect", { class: "ee-box", height: BOX });
    this.bar = draw("rect", { class: "ee-bar", x: 6, y: BOX - 4, height: 2, rx: 1 });
    this.sign = draw("path", { class: "ee-sign", transform: "translate(13 12)" });
    // One text, for each is laid out by itself: the token, its blanks apart, and the number at the right end.
    this.blanks = draw("tspan", { class: "ee-blank" });
    this.word = draw("tspan", { class: "ee-word" });
    this.number = draw("tspan", { class: "ee-number", y: 16, "text-anchor": "end" });
    const parts = [this.blanks, this.word, this.number];
    // What is to be heard stands in the name of the node.
    this.label = draw("text", { class: "ee-label", y: 16.5, "aria-hidden": "true" }, parts);
    this.element = draw("g", { "data-key": key }, this.box, this.bar, this.sign, this.label);
  }

  // `item` with its look at a step, in a picture of such a size; what is still to come is an empty box.
  show(item, look, size, tree, step) {
    const coming = look.look === "ghost";
    const width = size.widths[item.column];
    change(this.element, {
      class: `ee-node ee-${look.look}${look.faint ? " ee-faint" : ""}${look.left ? " ee-left" : ""}`,
      role: coming ? null : "treeitem",
      "aria-hidden": coming ? "true" : null,
      "aria-level": coming ? null : item.column + 1,
      "aria-label": coming ? null : spokenNode(item, tree, look, step),
      tabindex: coming ? null : "-1",
    });
    const place = `translate(${size.lefts[item.column]}px, ${boxTop(item.row)}px)`;
    if (this.place !== place) this.element.style.transform = this.place = place;
    change(this.box, { width, rx: this.corner(look.look) });
    if (!coming) this.fill(item, look, width);
  }

  corner(look) {
    return look === "bonus" || look === "folded" ? BOX / 2 : look === "root" ? 3 : 6;
  }

  fill(item, look, width) {
    const share = look.number === null ? 0 : clamp(look.number, 0, 1);
    change(this.bar, { width: (width - 12) * share });
    change(this.label, { x: look.look === "folded" ? 10 : 23 });
    change(this.number, { x: width - 7 });
    change(this.sign, { d: LOOKS[look.look].sign });
    say(this.number, look.number === null ? "" : shortProbability(look.number));
    const { blanks, word } = parted(item.label);
    say(this.blanks, blanks);
    say(this.word, word);
  }
}

// Set the attributes that are not so yet; null takes one away.
function change(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const old = element.getAttribute(name);
    if (value === null) {
      if (old !== null) element.removeAttribute(name);
    } else if (old !== String(value)) element.setAttribute(name, value);
  }
}

// Set the text of an element, if it is another one.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
