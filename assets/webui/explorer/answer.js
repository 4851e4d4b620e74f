// The answer, each token coloured by where it came from and told apart by its place, never by looking for its text.

const ORIGINS = [
  ["draft", "drafted and accepted"],
  ["bonus", "the target’s own"],
  ["plain", "before any draft"],
];

class AnswerView {
  // `onCycle(index)`: a token of that cycle was clicked.
  constructor(onCycle) {
    this.text = make("div", {
      class: "ee-answer",
      dir: "auto",
      tabindex: "0",
      role: "group",
      "aria-label": "The answer",
      onclick: (event) => {
        const piece = event.target.closest("[data-cycle]");
        if (piece) onCycle(Number(piece.dataset.cycle));
      },
    });
    this.question = make("p", { class: "ee-question", dir: "auto", role: "group", "aria-label": "The question" });
    this.element = make("div", { class: "ee-text" }, this.question, this.text, originLegend());
    this.groups = [];
  }

  start(run) {
    this.run = run;
    this.groups = [];
    this.current = null;
    this.question.hidden = run.question === null;
    this.question.textContent = run.question === null ? "" : readable(run.question);
    replace(this.text);
    run.cycles.forEach((cycle) => this.add(cycle));
    if (run.end && isText(run.end.text)) this.text.append(readable(run.end.text));
  }

  add(cycle) {
    const group = make("span", { class: "ee-cycle", "data-cycle": this.groups.length }, pieces(cycle.tokens));
    this.groups.push(group);
    this.text.append(group);
  }

  // Where the story stands: tokens of later cycles are still to come, those of this cycle from `commit` on.
  at(index, committed) {
    this.groups.forEach((group, place) => {
      group.classList.toggle("ee-now", place === index && committed);
      group.classList.toggle("ee-later", place > index || (place === index && !committed));
    });
    window.cancelAnimationFrame(this.frame);
    this.frame = window.requestAnimationFrame(() => this.reveal(this.groups[index]));
  }

  // Scroll the answer, and only it, so that a cycle's tokens can be seen. Done once the page has been laid out.
  reveal(group) {
    const { scrollHeight, clientHeight: shown } = this.question;
    change(this.question, { tabindex: scrollHeight > shown + 1 ? "0" : null }); // a long one scrolls, by keyboard too
    if (!group || !this.text.clientHeight) return;
    const top = group.offsetTop - this.text.offsetTop;
    const { scrollTop, clientHeight } = this.text;
    if (top < scrollTop || top + group.offsetHeight > scrollTop + clientHeight) {
      this.text.scrollTop = top - clientHeight / 2;
    }
  }
}

function pieces(tokens) {
  return tokens
    .filter((one) => one.text !== "")
    .map((one) => make("span", { class: `ee-from-${one.origin}` }, readable(one.text)));
}

function originLegend() {
  return make(
    "p",
    { class: "ee-legend" },
    ORIGINS.map(([origin, words]) => [make("span", { class: `ee-from-${origin}` }, "text"), make("span", {}, words)]),
  );
}
