// Does it pay? c is what a cycle costs more than a plain step, in plain steps; a draft pays where τ > 1 + c.

class PayView {
  constructor() {
    this.element = make("div", {});
    this.flat = false;
    this.typed = null;
  }

  show({ runs, run, costs, plain }) {
    const changed = this.run !== run || this.cycles !== run.cycles.length;
    Object.assign(this, { runs, run, costs, cycles: run.cycles.length });
    const mean = run.meanSeconds();
    if (run.plain || !mean || !run.decoding.some((cycle) => cycle.traced)) {
      const other = runs.some((one) => !one.plain) ? ": choose one with a draft above" : ", so there is nothing to weigh";
      const plain = run.plain
        ? `This answer was made without a draft${other}.`
        : "No draft tree is recorded here yet.";
      replace(this.element, make("p", { class: "ee-prose" }, plain));
      this.run = null;
      return;
    }
    if (changed) this.measure(mean, plain);
    if (changed || !this.element.firstChild) this.build();
    this.update();
  }

  // What the recordings say; `step`: seconds of a plain step by stage, measured beside them, or null.
  measure(mean, step) {
    const { run } = this;
    const plain =
      this.runs.find((one) => one.plain && one.decoding.length && one.question === run.question) ??
      this.runs.find((one) => one.plain && one.decoding.length);
    const traced = run.decoding.filter((cycle) => cycle.traced);
    this.mean = mean;
    this.plainMean = plain ? plain.meanSeconds() : step;
    const most = { depth: 1, topK: 1, nodes: 1, drafted: 1 };
    const raise = (name, value) => (most[name] = Math.max(most[name], value));
    for (const cycle of traced) {
      const fresh = cycle.known === null;
      const { nodes, kept, depth } = cycle.tree;
      raise("depth", depth);
      raise("nodes", kept.length);
      raise("drafted", nodes.length);
      for (const node of nodes) raise("topK", node.rank + 1);
      if (fresh) cycle.forget();
    }
    Object.assign(this, most);
    const points = passPoints(this.costs, this.runs);
    this.points = points.length ? points : [[this.nodes, mean.verify]];
    this.ask = { depth: this.depth, topK: this.topK, nodes: this.nodes };
  }

  get plainStep() {
    if (this.typed) return this.typed;
    return this.plainMean ? sum(Object.values(this.plainMean)) : (this.costs.get(1) ?? null);
  }

  get passCosts() {
    const { points, plainStep } = this;
    if (!plainStep || points[0][0] === 1) return new PassCosts(points);
    return new PassCosts([[1, this.plainMean?.verify ?? plainStep], ...points]);
  }

  // c of a tree: the target's pass by its nodes, the head's passes by the levels, the rest as it was.
  cost(depth, nodes) {
    const pass = this.flat ? this.passCosts.at(1) : this.pass(nodes);
    const rest = this.mean.sample + this.mean.commit + this.mean.other;
    return (this.mean.draft * (nodes > 1 ? depth / this.depth : 0) + pass + rest) / this.plainStep - 1;
  }

  // Costs measured elsewhere miss this answer's mean, if only because its last trees were smaller. So they are shifted,
  // the more the larger the tree, until they meet it at the recorded size; a pass of one node stays as it is.
  pass(nodes) {
    const { passCosts } = this;
    const missed = this.mean.verify - passCosts.at(this.nodes);
    const share = this.nodes > 1 ? Math.min((nodes - 1) / (this.nodes - 1), 1) : 1;
    return Math.max(passCosts.at(nodes) + missed * share, 0);
  }

  build() {
    const slider = (key, words, most, why) => {
      const id = newId(key);
      const output = make("output", { for: id });
      const input = make("input", {
        id,
        type: "range",
        min: key === "nodes" ? 2 : 1,
        max: most,
        value: this.ask[key],
        oninput: () => {
          this.ask[key] = Number(input.value);
          this.update();
        },
      });
      this.sliders[key] = { input, output };
      return make(
        "div",
        { class: "ee-slider" },
        make("label", { for: id }, words, " ", output),
        input,
        make("span", { class: "ee-small" }, why),
      );
    };
    this.sliders = {};
    this.facts = make("div", { class: "ee-facts" });
    this.result = make("p", { class: "ee-verdict", "aria-live": "polite" });
    this.picture = make("div", {});
    const flat = make("input", {
      type: "checkbox",
      onchange: (event) => {
        this.flat = event.target.checked;
        this.update();
      },
    });
    flat.checked = this.flat;
    const step = make("input", {
      type: "number",
      min: "0",
      step: "any",
      "aria-label": "Seconds of a plain step",
      placeholder: "seconds",
      oninput: (event) => {
        this.typed = Number(event.target.value) > 0 ? Number(event.target.value) : null;
        this.update();
      },
    });
    replace(
      this.element,
      make(
        "p",
        { class: "ee-prose" },
        "A cycle with a draft costs as much as 1 + c plain steps and gives τ tokens, so it pays where ",
        make("b", {}, "τ > 1 + c"),
        ". Here c is measured: cycle time ÷ plain step − 1.",
      ),
      this.facts,
      this.plainMean || this.costs.get(1)
        ? null
        : make(
            "p",
            { class: "ee-prose" },
            "No plain answer is recorded here, so c is not known. If you know what a plain step takes on that machine: ",
            step,
            " s",
          ),
      make("h3", {}, "What if the tree were another?"),
      make(
        "div",
        { class: "ee-columns" },
        make(
          "div",
          {},
          slider("depth", "Depth", this.depth, "levels of the draft"),
          slider("topK", "Width", this.topK, "children of an extended node"),
          slider("nodes", "Nodes N", this.drafted, "sent to the target, root included"),
          make("label", { class: "ee-check" }, flat, " a pass costs the same for any N (as on a large accelerator)"),
        ),
        make("div", {}, this.result, this.picture),
      ),
      make("p", { class: "ee-small" }, this.footnote()),
    );
  }

  footnote() {
    const basis =
      this.points.length > 1
        ? `The cost of a pass was measured at N = ${this.points.map(([nodes]) => nodes).join(", ")}. It is shifted to meet this answer’s mean at the recorded settings.`
        : "The cost of a pass by N is a straight line between the plain step and the recorded tree.";
    const rule =
      this.run.rule === "rejection"
        ? " Under the rejection rule the answer itself depends on the tree, so this is an estimate."
        : "";
    const sizes = new Set(this.run.decoding.slice(0, -1).map((cycle) => cycle.numNodes));
    const varied = sizes.size > 1 ? " The trees of this answer differ in size; N is that of the largest." : "";
    return `τ is computed on the recorded drafts, each from its recorded root; nodes that were never drafted count as wrong. ${basis} Drafting is taken to cost the same for each level.${rule}${varied}`;
  }

  update() {
    const { ask } = this;
    for (const [key, { output }] of Object.entries(this.sliders)) output.textContent = String(ask[key]);
    const needed = nodesNeeded(this.run, ask.depth, ask.topK);
    const tau = tauAt(needed, ask.nodes);
    const recorded = this.run.tau();
    const step = this.plainStep;
    const total = sum(Object.values(this.mean));
    const c = step ? total / step - 1 : null;
    replace(
      this.facts,
      fact("τ", hundredths(recorded), "tokens a pass, measured"),
      fact(
        "c",
        c === null ? "?" : hundredths(c),
        c === null ? "not known" : `${duration(total)} a cycle, ${duration(step)} a plain step`,
      ),
      fact("break-even τ", c === null ? "?" : hundredths(1 + c), "1 + c"),
      fact("speed-up", c === null ? "?" : `×${hundredths(recorded / (1 + c))}`, "τ ÷ (1 + c)"),
    );
    if (step) {
      const even = 1 + this.cost(ask.depth, ask.nodes);
      const speed = tau / even;
      const pays = speed >= 1;
      this.result.className = `ee-verdict ${pays ? "ee-yes" : "ee-no"}`;
      replace(
        this.result,
        make("b", {}, pays ? "✓ " : "✗ "),
        `τ ${hundredths(tau)} against a break-even of ${hundredths(even)}: `,
        make("b", {}, `×${hundredths(speed)}`),
        pays ? ", it pays." : ", it does not pay.",
      );
    } else {
      this.result.className = "ee-verdict";
      replace(this.result, `τ would be ${hundredths(tau)}.`);
    }
    const sizes = Array.from({ length: this.drafted }, (_, place) => place + 1);
    const taus = sizes.map((nodes) => tauAt(needed, nodes));
    const bars = step ? sizes.map((nodes) => 1 + this.cost(ask.depth, nodes)) : [];
    replace(this.picture, payCurve(taus, bars, ask.nodes));
  }
}

function fact(name, value, why) {
  return make(
    "div",
    { class: "ee-fact" },
    make("span", { class: "ee-fact-name" }, name),
    make("b", {}, value),
    make("span", { class: "ee-small" }, why),
  );
}
