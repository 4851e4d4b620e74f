// The panels below the tree, one at a time behind its tab.

const TABS = [
  ["mask", "Attention mask"],
  ["charts", "Charts"],
  ["compare", "Compare"],
  ["pay", "Does it pay?"],
  ["help", "How to read this"],
];

class Panels {
  // `first`: the tab that is open at the start. `views`: by tab, {element, show(state)}; `state()`: what to show.
  constructor(first, views, state) {
    this.tab = TABS.some(([key]) => key === first) ? first : "mask";
    Object.assign(this, { views, state });
    this.panel = make("div", { class: "ee-panel", role: "tabpanel", id: newId("panel"), tabindex: "-1" });
    this.buttons = TABS.map(([key, name]) => {
      const about = { type: "button", role: "tab", id: newId(key), "aria-controls": this.panel.id, "data-tab": key };
      return make("button", { ...about, onclick: () => this.open(key) }, name);
    });
    const list = { class: "ee-tabs", role: "tablist", "aria-label": "More about this run" };
    const turn = (event) => this.turn(event);
    this.element = make(
      "div",
      { class: "ee-more" },
      make("div", { ...list, onkeydown: turn }, this.buttons),
      this.panel,
    );
  }

  open(key) {
    this.tab = key;
    this.show();
  }

  show() {
    for (const button of this.buttons) {
      const on = button.dataset.tab === this.tab;
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
      if (on) this.panel.setAttribute("aria-labelledby", button.id);
    }
    const view = this.views[this.tab];
    if (this.panel.firstChild !== view.element) replace(this.panel, view.element); // first, so that it has its width
    view.show(this.state());
  }

  turn(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (TABS.findIndex(([key]) => key === this.tab) + by + TABS.length) % TABS.length;
    this.open(TABS[next][0]);
    this.buttons[next].focus();
  }
}
