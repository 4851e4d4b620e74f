// The whole explorer: what is shown, where in the story it stands, and what moves it.

const STEP_MILLISECONDS = 1900;
class Explorer {
  constructor(element, data, options) {
    this.host = element;
    this.options = options;
    this.at = { run: 0, cycle: 0, step: 0 };
    this.live = this.following = Boolean(options.live); // live: more may come
    this.views = new WeakMap();
    this.build();
    this.take(data);
  }

  build() {
    const level = this.options.standalone ? "h1" : "h2";
    this.tree = new TreeView((node) => this.mask.light(node));
    this.mask = new MaskView((node) => this.tree.mark(node));
    this.answer = new AnswerView((index) => this.goTo(index, Infinity));
    this.panels = new Panels(
      this.options.tab,
      {
        mask: this.mask,
        charts: new ChartsView((index) => this.goTo(index, Infinity)),
        compare: (this.compare = new CompareView(this.options.standalone)),
        pay: new PayView(),
        help: { element: help(), show() {} },
      },
      () => ({
        runs: this.model.runs,
        costs: this.model.costs,
        plain: this.model.plain,
        place: this.at.run,
        run: this.run,
        index: this.at.cycle,
      }),
    );
    this.about = make("p", { class: "ee-about" });
    this.picker = make("select", {
      "aria-label": "Answer",
      onchange: () => this.attempt(() => this.choose(Number(this.picker.value))),
    });
    this.paragraph = make("p", { class: "ee-explain" });
    this.stepTitle = make("h3", { class: "ee-step-title" });
    this.failure = make("p", { class: "ee-failure", role: "alert" });
    this.failure.hidden = true;
    this.legend = make("div", { class: "ee-legend ee-tree-legend" });
    this.controls = new Transport(this);
    this.stop = watchTheme(
      this.host,
      this.options.theme ?? "auto",
      (dark) => (this.root.dataset.theme = dark ? "dark" : "light"),
    );
    this.root = make(
      "section",
      { class: "ee", "aria-label": "Draft-tree explorer", onkeydown: (event) => this.press(event) },
      make(
        "div",
        { class: "ee-screen" },
        make(
          "header",
          { class: "ee-head" },
          make(level, { class: "ee-title" }, this.options.title ?? "How this answer was drafted"),
          this.picker,
          this.about,
          this.options.standalone ? this.themeButton() : null,
        ),
        this.options.standalone ? make("p", { class: "ee-intro" }, INTRODUCTION) : null,
        this.failure,
        (this.body = this.story()),
      ),
      this.panels.element,
    );
    this.stop.start();
    replace(this.host, this.root);
  }

  // What follows the scrubber.
  story() {
    const side = { class: "ee-side", "aria-label": "What happens here" };
    return make(
      "div",
      { class: "ee-body" },
      this.answer.element,
      this.controls.element,
      make(
        "div",
        { class: "ee-main" },
        this.tree.element,
        make("aside", side, this.stepTitle, this.paragraph, this.legend),
      ),
    );
  }

  themeButton() {
    const toggle = () => {
      this.stop.end();
      this.root.dataset.theme = this.root.dataset.theme === "dark" ? "light" : "dark";
    };
    return make(
      "button",
      { type: "button", class: "ee-theme", "aria-label": "Light or dark", title: "Light or dark", onclick: toggle },
      "◐",
    );
  }

  // Replace everything that is shown. A live answer has then come to its end; whoever has gone back stays there.
  update(data) {
    this.live = false;
    this.take(data);
  }

  take(data) {
    this.attempt(() => {
      const newer = this.model ? this.model.runs.length - this.at.run : 1; // answers from the one that is shown on
      this.model = readData(data);
      const { runs } = this.model;
      this.compare.forget();
      const names = runs.map((run, place) => make("option", { value: place }, runName(run, place)));
      replace(this.picker, names);
      this.picker.hidden = runs.length < 2;
      if (!runs.length) throw new Error("Nothing is recorded yet.");
      const { following } = this;
      const stay = this.options.live && !following && this.steps ? { ...this.at } : null;
      // Answers from before a live one now stand in front of it.
      const shown = this.options.live ? runs.length - newer : this.at.run;
      this.choose(following ? runs.length - 1 : clamp(shown, 0, runs.length - 1));
      if (stay) this.goTo(stay.cycle, stay.step);
      else if (following && !this.live) this.goTo(lastToSee(this.run), Infinity);
    });
  }

  // One more cycle of the last answer; the picture follows unless somebody looks at an older one.
  push(cycle) {
    this.live = Boolean(this.options.live);
    this.attempt(() => {
      const run = this.model.runs[this.model.runs.length - 1];
      if (!run) throw new Error("A cycle came before its answer began.");
      run.push(cycle);
      if (this.run !== run) return;
      this.answer.add(run.cycles[run.cycles.length - 1]);
      if (this.following || !this.steps) this.goTo(run.cycles.length - 1, Infinity, this.following);
      else this.controls.show(run, this.at, this.steps);
    });
  }

  destroy() {
    this.controls.pause();
    this.tree.destroy();
    this.stop.end();
    this.host.replaceChildren();
  }

  // Do it; where the data does not allow it, say so in place of the picture.
  attempt(action) {
    this.fails(null);
    try {
      action();
    } catch (error) {
      this.controls.pause();
      this.fails(error.message);
    }
  }

  fails(message) {
    this.failure.hidden = message === null;
    this.failure.textContent = message ?? "";
    this.body.hidden = this.panels.element.hidden = message !== null;
  }

  get run() {
    return this.model.runs[this.at.run];
  }

  get cycle() {
    return this.run.cycles[this.at.cycle];
  }

  choose(place) {
    this.at.run = place;
    this.picker.value = String(place);
    const { run } = this;
    this.about.textContent = this.about.title = aboutRun(run);
    this.answer.start(run);
    if (!run.cycles.length) return this.wait();
    const first = run.cycles.findIndex((cycle) => cycle.n > 0);
    this.goTo(
      this.following ? run.cycles.length - 1 : Math.max(first, 0),
      this.following ? Infinity : 0,
      this.following,
    );
  }

  // Nothing of the answer is there yet, or ever was: everything keeps its place.
  wait() {
    Object.assign(this.at, { cycle: 0, step: 0 });
    this.steps = null;
    const words = this.live
      ? "The target reads the prompt. Drafting begins after its first token."
      : "This answer was stopped before its first token.";
    replace(this.stepTitle, this.live ? "Prefill" : "No cycle");
    replace(this.paragraph, words);
    this.tree.element.classList.add("ee-empty");
    this.tree.element.dataset.words = "";
    replace(this.legend);
    this.controls.clear();
    this.panels.element.hidden = true;
  }

  // Stand at a step of a cycle; Infinity is its last step. `following`: whoever goes back no longer follows.
  goTo(cycle, step, following = false) {
    const { run } = this;
    if (!run.cycles.length) return;
    this.at.cycle = clamp(cycle, 0, run.cycles.length - 1);
    const newest = this.at.cycle === run.cycles.length - 1 && step === Infinity;
    this.following = this.live && (following || newest);
    this.attempt(() => {
      this.steps = stepsOf(run, this.cycle);
      this.at.step = clamp(step, 0, this.steps.length - 1);
      this.render();
    });
  }

  move(by) {
    if (!this.steps) return false;
    const step = this.at.step + by;
    if (step >= 0 && step < this.steps.length) this.goTo(this.at.cycle, step);
    else if (by > 0 && this.at.cycle + 1 < this.run.cycles.length) this.goTo(this.at.cycle + 1, 0);
    else if (by < 0 && this.at.cycle > 0) this.goTo(this.at.cycle - 1, Infinity);
    else return false;
    return true;
  }

  render() {
    const { run, cycle } = this;
    const step = this.steps[this.at.step];
    const quiet = this.controls.playing || this.following;
    this.paragraph.setAttribute("aria-live", quiet ? "off" : "polite");
    replace(this.stepTitle, cycle.n === 0 ? "Prefill" : `Cycle ${cycle.n} · ${step.spoken ?? step.name}`);
    replace(this.paragraph, paragraph(explain(run, cycle, step)));
    this.answer.at(this.at.cycle, step.kind === "commit" || step.kind === "prefill");
    this.controls.show(run, this.at, this.steps);
    this.showTree(cycle, step);
    this.panels.show();
  }

  showTree(cycle, step) {
    const { tree } = cycle;
    this.tree.element.classList.toggle("ee-empty", !tree);
    if (!tree) {
      const first = `The first token comes from the prompt alone.${this.run.plain ? "" : " Drafting begins after it."}`;
      this.tree.element.dataset.words = cycle.n === 0 ? first : "No draft tree was recorded in this cycle.";
      replace(this.legend);
      return;
    }
    if (!this.views.has(tree)) this.views.set(tree, new Views(tree));
    const step2 = step.kind === "prefill" ? { kind: "commit" } : step;
    this.tree.show(tree, this.views.get(tree), step2, `Draft tree of cycle ${cycle.n}, ${step.spoken ?? step.name}`);
    replace(this.legend, legendOf(step2, tree));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const tag = event.target.tagName;
    if (tag === "INPUT" || tag === "SELECT" || tag === "TEXTAREA") return;
    const keys = {
      ArrowRight: () => (event.shiftKey ? this.goTo(this.at.cycle + 1, 0) : this.move(1)),
      ArrowLeft: () => (event.shiftKey ? this.goTo(this.at.cycle - 1, 0) : this.move(-1)),
      Home: () => this.goTo(0, 0),
      End: () => this.goTo(this.run.cycles.length - 1, Infinity),
    };
    if (tag !== "BUTTON" && tag !== "SUMMARY") keys[" "] = () => this.controls.toggle();
    if (!keys[event.key]) return;
    event.preventDefault();
    if (event.key !== " ") this.controls.pause();
    keys[event.key]();
  }
}

// The last cycle of an answer in which there is something to see: a token that was left over has a tree of one node.
function lastToSee(run) {
  const last = run.cycles.length - 1;
  if (last < 0) return 0;
  if (run.cycles[last].numNodes > 1) return last;
  const found = run.cycles.findLastIndex((cycle) => cycle.traced && cycle.numNodes > 1);
  return found < 0 ? last : found;
}

const EagleExplorer = {
  // `element`: what the explorer fills. `data`: a page's data. `options`: `live` (cycles will be pushed, and
  // `update` brings the whole at the end; follow the newest), `theme` ("auto", "light", "dark", or "host": dark where
  // the body has that class), `tab`, `title`, and `standalone` (a page of its own, with an introduction).
  mount(element, data, options = {}) {
    const explorer = new Explorer(element, data, options);
    const press = (event) => event.target === document.body && explorer.press(event);
    if (options.standalone) document.addEventListener("keydown", press);
    return {
      update: (next) => explorer.update(next),
      push: (cycle) => explorer.push(cycle),
      choose: (place) => explorer.choose(place), // the answer at that place, within `attempt`
      attempt: (action) => explorer.attempt(action),
      destroy() {
        document.removeEventListener("keydown", press);
        explorer.destroy();
      },
    };
  },
};
