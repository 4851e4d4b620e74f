// What moves the story: cycles by a slider, steps by buttons, and play.

class Transport {
  constructor(explorer) {
    this.explorer = explorer;
    this.timer = null;
    const button = (name, text, action) =>
      make("button", { type: "button", "aria-label": name, title: name, onclick: action }, text);
    this.play = button("Play", "▶", () => this.toggle());
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Cycle", oninput: () => this.slide() });
    this.count = make("output", { class: "ee-count-of" });
    this.steps = make("div", { class: "ee-segments ee-steps", role: "group", "aria-label": "Steps of this cycle" });
    this.latest = make(
      "button",
      {
        type: "button",
        class: "ee-latest",
        "aria-label": "Follow the newest",
        title: "Follow the newest cycle",
        onclick: () => explorer.goTo(explorer.run.cycles.length - 1, Infinity, true),
      },
      "newest ⇥",
    );
    this.element = make(
      "div",
      { class: "ee-transport" },
      make(
        "div",
        { class: "ee-cycles" },
        this.play,
        button("Back one step", "‹", () => this.hand(-1)),
        button("On one step", "›", () => this.hand(1)),
        this.slider,
        this.count,
        this.latest,
      ),
      this.steps,
    );
  }

  get playing() {
    return this.timer !== null;
  }

  show(run, at, steps) {
    const last = run.cycles.length - 1;
    this.slider.max = String(last);
    this.slider.value = String(at.cycle);
    const words = `cycle ${run.cycles[at.cycle].n} of ${run.cycles[last].n}`;
    this.slider.setAttribute("aria-valuetext", words);
    this.count.textContent = words;
    this.latest.hidden = !this.explorer.live || this.explorer.following;
    const names = steps.map((step) => step.spoken ?? step.name).join("|");
    if (this.names !== names) {
      this.names = names;
      replace(
        this.steps,
        steps.map((step, place) =>
          make("button", { type: "button", "aria-label": step.spoken, onclick: () => this.step(place) }, step.name),
        ),
      );
    }
    [...this.steps.children].forEach((button, place) => {
      if (place === at.step) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
  }

  // Nothing is there to be gone to.
  clear() {
    this.pause();
    this.slider.max = this.slider.value = "0";
    this.slider.setAttribute("aria-valuetext", "no cycle");
    this.count.textContent = this.names = "";
    this.latest.hidden = true;
    replace(this.steps);
  }

  slide() {
    this.pause();
    this.explorer.goTo(Number(this.slider.value), Infinity);
  }

  step(place) {
    this.pause();
    this.explorer.goTo(this.explorer.at.cycle, place);
  }

  hand(by) {
    this.pause();
    this.explorer.move(by);
  }

  toggle() {
    if (this.playing) {
      this.pause();
      return;
    }
    const { explorer } = this;
    if (!explorer.steps) return;
    const atEnd =
      explorer.at.cycle === explorer.run.cycles.length - 1 && explorer.at.step === explorer.steps.length - 1;
    if (atEnd) explorer.goTo(0, 0);
    this.timer = window.setInterval(() => explorer.move(1) || this.pause(), STEP_MILLISECONDS);
    this.sign("❚❚", "Pause");
    if (!atEnd) explorer.move(1);
  }

  pause() {
    if (this.timer === null) return;
    window.clearInterval(this.timer);
    this.timer = null;
    this.sign("▶", "Play");
  }

  sign(text, name) {
    this.play.textContent = text;
    this.play.setAttribute("aria-label", name);
    this.play.title = name;
  }
}
