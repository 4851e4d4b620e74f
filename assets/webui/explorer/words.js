// The standing texts: what this is, what the marks mean, which keys there are.

const INTRODUCTION =
  "A small draft head guesses how the text goes on: not one continuation but a tree of them. The large model, the target, " +
  "checks the whole tree in a single pass, keeps the branch that it would have written itself, and adds one token of its " +
  "own. The text is the same as without the draft; there are only fewer passes.";

const LEGENDS = {
  level: ["root", "drafted", "extended", "folded"],
  rerank: ["root", "kept", "dropped", "folded"],
  verify: ["root", "accepted", "rejected", "unreached", "bonus", "folded"],
  commit: ["root", "accepted", "rejected", "unreached", "bonus", "folded"],
};
const MEANINGS = {
  root: "root, the newest token",
  drafted: "drafted",
  extended: "extended by the head",
  folded: "more nodes, folded",
  kept: "kept",
  dropped: "dropped",
  accepted: "accepted",
  rejected: "rejected",
  unreached: "never reached",
  bonus: "the target’s own",
};

function legendOf(step, tree) {
  const folded = isJudged(step) ? tree.kept.length > MOST_KEPT : tree.nodes.length > MOST_DRAWN;
  const looks = LEGENDS[step.kind].filter((look) => look !== "folded" || folded);
  return [
    make(
      "ul",
      {},
      looks.map((look) => make("li", {}, swatch(look), MEANINGS[look])),
    ),
    make("p", { class: "ee-small" }, "Number and bar are ", NUMBER_WORDS[step.kind], "."),
  ];
}

function swatch(look) {
  const round = look === "bonus" || look === "folded" ? 8 : look === "root" ? 2 : 4;
  return draw(
    "svg",
    { class: "ee-swatch", viewBox: "0 0 26 16", width: 26, height: 16, "aria-hidden": "true" },
    draw(
      "g",
      { class: `ee-node ee-${look}` },
      draw("rect", { class: "ee-box", x: 1, y: 1, width: 24, height: 14, rx: round }),
      draw("path", { class: "ee-sign", transform: "translate(13 8)", d: LOOKS[look].sign }),
    ),
  );
}

const GLOSSARY = [
  ["root", "The newest token of the text. The tree holds guesses of what follows it."],
  ["q", "How probable the draft head finds a token after its parent; while drafting, number and bar of a node."],
  ["value", "The head’s guess that the whole way is right: the product of the q’s from the root to the node. Where drafts share the noise of the draws, that noise counts too."],
  ["rank", "The place of a node among its parent’s children: 1 is the head’s favourite."],
  ["p", "How probable the target finds the token after its parent. Known only after the pass."],
  ["accepted", "The target would have written this token itself, so it joins the text."],
  ["rejected", "Its parent was accepted, but the target went another way."],
  ["never reached", "Its parent was not accepted, so nobody asked."],
  ["the target’s own", "Where the path ends the target has already computed what follows: one token for free."],
  ["τ (tau)", "Tokens for each pass of the target. Plain decoding has 1."],
  ["signs", "␣ is a blank, ⏎ a line end, ⇥ a tab; ␣×4 are four blanks."],
];

const KEYS = [
  ["→ ←", "a step on, a step back"],
  ["Shift → ←", "a cycle on, a cycle back"],
  ["Space", "play, pause"],
  ["Home End", "beginning, end"],
  ["Tab", "into the tree; there the arrows go from node to node"],
  ["+ − 0", "in the tree: zoom in, out, fit"],
];

function help() {
  const list = (rows) =>
    make(
      "dl",
      { class: "ee-glossary" },
      rows.map(([name, words]) => make("div", {}, make("dt", {}, name), make("dd", {}, words))),
    );
  return make(
    "div",
    {},
    make("p", { class: "ee-prose" }, INTRODUCTION),
    make(
      "div",
      { class: "ee-columns" },
      make("div", {}, make("h3", {}, "Words"), list(GLOSSARY)),
      make("div", {}, make("h3", {}, "Keys"), list(KEYS)),
    ),
  );
}

// Target, head, tree, sampling, device, in a line.
function aboutRun(run) {
  const { about } = run;
  const sampling = about.sampling ?? {};
  const tree = about.tree ?? {};
  const shape = ["depth", "top_k", "total_tokens"].filter((name) => isCount(tree[name]));
  const parts = [
    about.target,
    about.head ? `head ${about.head}` : "no draft head",
    run.plain ? "plain decoding" : `${run.policy} tree`,
    run.plain || !shape.length
      ? ""
      : shape
          .map((name) => `${{ depth: "depth", top_k: "width", total_tokens: "nodes" }[name]} ${tree[name]}`)
          .join(", "),
    sampling.temperature > 0
      ? `temperature ${sampling.temperature}, seed ${sampling.seed}, ${sampling.verify}`
      : "greedy",
    [about.device, about.dtype].filter(Boolean).join(" "),
  ];
  return parts
    .filter((part) => part && isText(part))
    .map((part) => readable(part).slice(0, 120))
    .join(" · ");
}

// Light or dark: "light", "dark", "auto" (the system), "host" (a page that marks its body with class "dark").
function watchTheme(host, wish, tell) {
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () =>
    wish === "auto" ? media.matches : wish === "host" ? document.body.classList.contains("dark") : wish === "dark";
  const again = () => tell(dark());
  const observer = wish === "host" ? new MutationObserver(again) : null;
  return {
    start() {
      again();
      media.addEventListener("change", again);
      if (observer) observer.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    },
    end() {
      media.removeEventListener("change", again);
      if (observer) observer.disconnect();
    },
  };
}
