// Two answers side by side: the same time axis, the same text or not, and where they part.

const WIDEST_LANE = 900;

class CompareView {
  // `standalone`: whether the page is the explorer alone.
  constructor(standalone) {
    this.standalone = standalone;
    this.by = "time";
    this.element = make("div", {});
  }

  // Other answers are there: choose anew what to lay beside what.
  forget() {
    this.left = undefined;
    this.right = undefined;
  }

  show({ runs, place }) {
    this.runs = runs;
    if (runs.length < 2) {
      replace(
        this.element,
        make(
          "p",
          { class: "ee-prose" },
          this.standalone
            ? "One answer alone cannot be compared. Record the same question with and without a draft, or lay a second recording beside this one."
            : "One answer alone cannot be compared. The Compare tab of this page answers a question in two ways; or ask the same question here again, with and without a draft.",
        ),
      );
      return;
    }
    this.left = clamp(this.left ?? place, 0, runs.length - 1);
    this.right ??= partnerOf(runs, this.left);
    this.render();
  }

  render() {
    const [a, b] = [this.runs[this.left], this.runs[this.right]];
    const same = sameText(a, b);
    const pick = (side, name) =>
      make(
        "select",
        {
          "aria-label": name,
          onchange: (event) => {
            this[side] = Number(event.target.value);
            this.render();
          },
        },
        this.runs.map((run, place) =>
          make("option", { value: place, selected: place === this[side] }, runName(run, place)),
        ),
      );
    const by = (value, words) =>
      make(
        "button",
        {
          type: "button",
          "aria-pressed": String(this.by === value),
          onclick: () => {
            this.by = value;
            this.render();
          },
        },
        words,
      );
    replace(
      this.element,
      make(
        "div",
        { class: "ee-bar-row" },
        pick("left", "First answer"),
        make("span", {}, "beside"),
        pick("right", "Second answer"),
        make(
          "span",
          { class: "ee-segments", role: "group", "aria-label": "Length of the lanes" },
          by("time", "by time"),
          by("passes", "by passes"),
        ),
      ),
      make(
        "p",
        { class: `ee-verdict ${same.same ? "ee-yes" : same.free ? "" : "ee-no"}` },
        make("b", {}, same.same ? "✓ " : same.free ? "≠ " : "✗ "),
        same.sentence,
      ),
      lanes(a, b, this.by, this.element.clientWidth || WIDEST_LANE),
      make(
        "div",
        { class: "ee-pair" },
        [a, b].map((run) => pairText(run, same.at)),
      ),
    );
  }
}

// The other answer to the same question, if there is one.
function partnerOf(runs, place) {
  const same = runs.findIndex(
    (run, other) => other !== place && run.question === runs[place].question && run.plain !== runs[place].plain,
  );
  return same >= 0 ? same : place === 0 ? 1 : 0;
}

function runName(run, place) {
  const question = run.question === null ? "" : `: ${readable(run.question).replace(/\s+/g, " ").slice(0, 40)}`;
  return `${place + 1}. ${run.title}${question}`;
}

// An answer that was cut short is held against the beginning of the other. `free`: other words are no fault.
function sameText(a, b) {
  const [left, right] = [a.tokens, b.tokens];
  const cut = a.cut || b.cut;
  const length = cut ? Math.min(left.length, right.length) : Math.max(left.length, right.length);
  let at = 0;
  while (at < length && left[at] && right[at] && left[at].id === right[at].id) at += 1;
  if (at === length) {
    const until = cut ? " until one was stopped" : "";
    return { same: true, at: null, sentence: `The same text, token for token (${counted(length, "token")}${until}).` };
  }
  if (a.question !== b.question) {
    return { same: false, free: true, at: null, sentence: "Different questions, so different texts." };
  }
  const why =
    a.rule === "rejection" || b.rule === "rejection"
      ? " The rejection rule keeps the distribution, not the draw."
      : JSON.stringify(a.about.sampling) !== JSON.stringify(b.about.sampling)
        ? " They were sampled with different settings."
        : "";
  return { same: false, free: why !== "", at, sentence: `The texts part at token ${at + 1} of ${length}.${why}` };
}

// `room`: pixels there are, so that signs stay as large as they are on a narrow screen too.
function lanes(a, b, by, room) {
  const [width, left, high, gap] = [clamp(room, 300, WIDEST_LANE), 4, 30, 44];
  const weight = (cycle) => (by === "time" ? cycle.total : 1);
  const length = (run) => sum(run.decoding.map(weight));
  const longest = Math.max(length(a), length(b)) || 1;
  const svg = draw("svg", {
    class: "ee-plot ee-lanes",
    viewBox: `0 0 ${width} ${2 * (high + gap)}`,
    role: "img",
    "aria-label": laneWords(a, b, by),
  });
  [a, b].forEach((run, place) => {
    const y = place * (high + gap) + 24;
    let x = left;
    const spent = by === "time" ? duration(length(run)) : counted(run.decoding.length, "pass", "passes");
    svg.append(
      draw(
        "text",
        { class: "ee-axis ee-strong", x: left, y: y - 8 },
        `${run.title}: ${spent}${run.tau() ? `, τ ${hundredths(run.tau())}` : ""}`,
      ),
    );
    for (const cycle of run.decoding) {
      const wide = (weight(cycle) / longest) * (width - 2 * left);
      svg.append(
        draw(
          "rect",
          {
            class: `ee-block${cycle.accepted ? " ee-drafted" : ""}`,
            x: x + 0.5,
            y,
            width: Math.max(wide - 1, 0.4),
            height: high,
            rx: Math.min(3, wide / 4),
          },
          draw("title", {}, `cycle ${cycle.n}: ${counted(cycle.tokens.length, "token")}, ${duration(cycle.total)}`),
        ),
      );
      if (wide > 13)
        svg.append(
          draw("text", { class: "ee-count", x: x + wide / 2, y: y + 20, "text-anchor": "middle" }, cycle.tokens.length),
        );
      x += wide;
    }
  });
  return svg;
}

function laneWords(a, b, by) {
  const say = (run) =>
    `${run.title} ${by === "time" ? duration(sum(run.decoding.map((cycle) => cycle.total))) : counted(run.decoding.length, "pass", "passes")}`;
  return `${say(a)}; ${say(b)}. Each block is a pass of the target with the tokens it gave.`;
}

function pairText(run, at) {
  const spans = pieces(run.tokens.slice(0, at ?? run.tokens.length));
  const rest = at === null || at >= run.tokens.length ? null : make("mark", {}, pieces(run.tokens.slice(at)));
  return make(
    "div",
    { class: "ee-pair-text" },
    make("p", { class: "ee-small" }, run.title),
    make(
      "div",
      { class: "ee-answer", dir: "auto", tabindex: "0", role: "group", "aria-label": `Answer by ${run.title}` },
      spans,
      rest,
    ),
  );
}
