// Four charts of a run, each with a sentence that says what it shows and its numbers as a table for who wants them.

function chart(title, sentence, picture, head, rows) {
  return make(
    "figure",
    { class: "ee-chart" },
    make("figcaption", {}, make("b", {}, title), " ", sentence),
    picture,
    make(
      "details",
      {},
      make("summary", {}, "numbers"),
      make(
        "table",
        {},
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            head.map((name) => make("th", { scope: "col" }, name)),
          ),
        ),
        make(
          "tbody",
          {},
          rows.map((row) =>
            make(
              "tr",
              {},
              row.map((cell) => make("td", {}, String(cell))),
            ),
          ),
        ),
      ),
    ),
  );
}

function frame(width, height, name) {
  return draw("svg", { class: "ee-plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
}

const axisText = (x, y, text, anchor = "middle") =>
  draw("text", { class: "ee-axis", x, y, "text-anchor": anchor }, text);

// Bars of tokens per cycle, drafted ones below, the target's own on top. A click goes to the cycle.
function tauChart(run, onCycle) {
  const cycles = run.decoding;
  if (!cycles.length) return null;
  const tau = run.tau();
  const most = Math.max(...cycles.map((cycle) => cycle.tokens.length), 2);
  const [width, height, left, bottom] = [440, 170, 28, 24];
  const svg = frame(width, height, `Tokens of each cycle, ${hundredths(tau)} on average`);
  const y = (tokens) => height - bottom - (tokens / most) * (height - bottom - 12);
  const step = (width - left - 8) / cycles.length;
  for (let tokens = 0; tokens <= most; tokens += Math.max(1, Math.ceil(most / 5))) {
    svg.append(
      draw("line", { class: "ee-grid", x1: left, x2: width - 8, y1: y(tokens), y2: y(tokens) }),
      axisText(left - 6, y(tokens) + 4, tokens, "end"),
    );
  }
  cycles.forEach((cycle, place) => {
    const drafted = cycle.tokens.filter((one) => one.origin === "draft").length;
    const x = left + place * step + Math.min(step * 0.12, 2);
    const wide = Math.max(step - 2 * Math.min(step * 0.12, 2), 0.5);
    const at = run.cycles.indexOf(cycle);
    svg.append(
      draw(
        "g",
        { class: "ee-bars", "data-cycle": at, onclick: () => onCycle(at) },
        draw("rect", { class: "ee-hit", x: left + place * step, y: 8, width: step, height: height - bottom - 8 }),
        draw("rect", { class: "ee-fill-draft", x, y: y(drafted), width: wide, height: y(0) - y(drafted) }),
        draw("rect", {
          class: "ee-fill-bonus",
          x,
          y: y(cycle.tokens.length),
          width: wide,
          height: y(drafted) - y(cycle.tokens.length),
        }),
        draw("title", {}, `cycle ${cycle.n}: ${counted(cycle.tokens.length, "token")}, ${drafted} of them drafted`),
      ),
    );
  });
  svg.append(
    draw("line", { class: "ee-mean", x1: left, x2: width - 8, y1: y(tau), y2: y(tau) }),
    draw(
      "text",
      { class: "ee-axis ee-strong", x: width - 10, y: y(tau) - 5, "text-anchor": "end" },
      `τ = ${hundredths(tau)}`,
    ),
    axisText(left, height - 7, "cycle 1", "start"),
    axisText(width - 8, height - 7, String(cycles.length), "end"),
  );
  const sentence = `${counted(sum(cycles.map((cycle) => cycle.tokens.length)), "token")} in ${counted(cycles.length, "pass", "passes")} of the target: τ = ${hundredths(tau)}. Lower part: drafted; upper part: the target’s own.`;
  return chart(
    "Tokens per cycle.",
    sentence,
    svg,
    ["cycle", "tokens", "drafted"],
    cycles.map((cycle) => [cycle.n, cycle.tokens.length, cycle.tokens.filter((one) => one.origin === "draft").length]),
  );
}

function depthChart(run) {
  const judged = [];
  const accepted = [];
  for (const cycle of run.decoding) {
    cycle.levels.forEach((level, depth) => {
      judged[depth] = (judged[depth] ?? 0) + 1;
      accepted[depth] = (accepted[depth] ?? 0) + Number(level);
    });
  }
  if (!judged.length) return null;
  const [width, height, left, bottom] = [440, 170, 42, 38];
  const svg = frame(width, height, "Acceptance by depth");
  const y = (share) => height - bottom - share * (height - bottom - 16);
  for (const share of [0, 0.5, 1]) {
    svg.append(
      draw("line", { class: "ee-grid", x1: left, x2: width - 8, y1: y(share), y2: y(share) }),
      axisText(left - 6, y(share) + 4, percent(share), "end"),
    );
  }
  const step = (width - left - 8) / judged.length;
  judged.forEach((count, depth) => {
    const share = accepted[depth] / count;
    const x = left + depth * step + step * 0.2;
    svg.append(
      draw("rect", { class: "ee-fill-draft", x, y: y(share), width: step * 0.6, height: y(0) - y(share) }),
      draw(
        "text",
        { class: "ee-axis ee-strong", x: x + step * 0.3, y: y(share) - 4, "text-anchor": "middle" },
        percent(share),
      ),
      axisText(x + step * 0.3, height - bottom + 14, `level ${depth + 1}`),
      axisText(x + step * 0.3, height - bottom + 28, `of ${count}`),
    );
  });
  const sentence =
    "Of the cycles whose path came to a level, how often a drafted token was accepted there. Deeper guesses build on guesses.";
  return chart(
    "Acceptance by depth.",
    sentence,
    svg,
    ["level", "judged", "accepted"],
    judged.map((count, depth) => [depth + 1, count, accepted[depth]]),
  );
}

function timeChart(run) {
  const mean = run.meanSeconds();
  const total = mean ? sum(Object.values(mean)) : 0;
  if (!total) return null;
  const [width, height] = [440, 96];
  const svg = frame(width, height, "Where the time of a cycle goes");
  let x = 0;
  STAGES.forEach((stage, place) => {
    const wide = (mean[stage] / total) * width;
    svg.append(
      draw(
        "rect",
        { class: `ee-stage-${place}`, x, y: 8, width: wide, height: 34 },
        draw("title", {}, `${stage}: ${percent(mean[stage] / total)}`),
      ),
    );
    if (wide > 60)
      svg.append(
        draw(
          "text",
          { class: `ee-onstage ee-onstage-${place}`, x: x + wide / 2, y: 29, "text-anchor": "middle" },
          `${stage} ${percent(mean[stage] / total)}`,
        ),
      );
    x += wide;
  });
  STAGES.forEach((stage, place) => {
    const at = place * 88;
    svg.append(
      draw("rect", { class: `ee-stage-${place}`, x: at, y: 54, width: 10, height: 10 }),
      axisText(at + 15, 63, stage, "start"),
      axisText(at + 15, 79, duration(mean[stage]), "start"),
    );
  });
  const sentence = `A cycle takes ${duration(total)} on average. Verify is the target’s pass; draft is the head.`;
  return chart(
    "Where the time goes.",
    sentence,
    svg,
    ["stage", "mean", "share"],
    STAGES.map((stage) => [stage, duration(mean[stage]), percent(mean[stage] / total)]),
  );
}

class ChartsView {
  // `onCycle(index)`: a bar was clicked.
  constructor(onCycle) {
    this.onCycle = onCycle;
    this.element = make("div", { class: "ee-charts" });
  }

  // Drawn anew only for other cycles; where the story stands is a mark on the first chart.
  show({ run, index }) {
    if (this.run !== run || this.count !== run.cycles.length) {
      Object.assign(this, { run, count: run.cycles.length });
      const known = [tauChart, depthChart, calibrationChart, timeChart].map((draws) => draws(run, this.onCycle));
      replace(this.element, run.decoding.length ? known : make("p", {}, "There is no decoding cycle yet."));
    }
    for (const bar of this.element.querySelectorAll(".ee-bars")) {
      bar.classList.toggle("ee-here", Number(bar.dataset.cycle) === index);
    }
  }
}
