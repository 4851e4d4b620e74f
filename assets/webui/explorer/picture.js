// What of a tree is drawn at a step: nodes with a look, a sign, a number; the same layout for as long as it holds.
// A view is {root, items, size}; an item {key, node, label, children, row, column, folded}.

const MOST_DRAWN = 90;
const MOST_KEPT = 300;
const MOST_BESIDE = 20; // children of an accepted node that are drawn of a tree with more kept nodes than that
// Signs are outlines around 0,0: written ones have to be looked for in one font after the other, a third of a layout.
const LOOKS = {
  root: { sign: "M-3 -4 4 0 -3 4z", word: "root" },
  drafted: { sign: "", word: "drafted" },
  extended: { sign: "", word: "extended" },
  kept: { sign: "M-.9 -4h1.8v3.1h3.1v1.8h-3.1v3.1h-1.8v-3.1h-3.1v-1.8h3.1z", word: "kept" },
  dropped: { sign: "M-4 -.9h8v1.8h-8z", word: "dropped" },
  accepted: { sign: "M-4.6 .6 -3.2 -.9 -1.3 1.1 3.3 -4.6 4.7 -3.5 -1.1 4z", word: "accepted" },
  rejected: {
    sign: "M-4 -2.8 -2.8 -4 0 -1.2 2.8 -4 4 -2.8 1.2 0 4 2.8 2.8 4 0 1.2 -2.8 4 -4 2.8 -1.2 0z",
    word: "rejected",
  },
  unreached: { sign: "M0 -1.3a1.3 1.3 0 1 1 -.01 0z", word: "never reached" },
  bonus: {
    sign: "M0 -5 1.3 -1.4 5.1 -1.3 2.1 1.1 3.2 4.8 0 2.6 -3.2 4.8 -2.1 1.1 -5.1 -1.3 -1.3 -1.4z",
    word: "the target’s own",
  },
  ghost: { sign: "", word: "still to come" },
  folded: { sign: "", word: "more nodes, folded" },
};

// Two views of a cycle, each made when it is first needed: everything that was drafted, and what the target saw.
class Views {
  constructor(tree) {
    this.tree = tree;
    this.known = {};
  }

  get drafted() {
    return (this.known.drafted ??= viewOf(grown(this.tree, this.tree.nodes[0], false)));
  }

  get judged() {
    return (this.known.judged ??= viewOf(grown(this.tree, this.tree.nodes[0], true)));
  }
}

function viewOf(root) {
  const size = arrange(root);
  const items = [];
  const collect = (item, parent) => {
    item.above = parent;
    items.push(item);
    item.children.forEach((child) => collect(child, item));
  };
  collect(root, null);
  return { root, items, size };
}

function itemOf(node) {
  return { key: `n${node.id}`, node, label: label(node.text), children: [], folded: null };
}

// What is drawn from a node on: all that was drafted, or what the target saw. Children that are not drawn are folded into
// one box.
function grown(tree, node, judged) {
  const item = itemOf(node);
  const folded = [];
  node.children.forEach((child, place) => {
    if (judged && child.slot < 0) return;
    if (isDrawn(tree, child, place)) item.children.push(grown(tree, child, judged));
    else folded.push(child);
  });
  if (folded.length) {
    item.children.push({ key: `f${node.id}`, node: folded[0], label: `${folded.length} more`, children: [], folded });
  }
  if (judged && node === tree.end) {
    item.children.push({ key: "bonus", node: null, label: label(tree.bonus), children: [], folded: null });
  }
  return item;
}

// A large draft folds the nodes that reranking dropped; one with very many kept nodes folds most of those too.
function isDrawn(tree, node, place) {
  if (node.slot < 0) return tree.nodes.length <= MOST_DRAWN;
  if (tree.kept.length <= MOST_KEPT || tree.path.includes(node)) return true;
  return place < MOST_BESIDE && tree.path.includes(node.parent);
}

// How an item looks at a step: {look, faint, number, left}. What is still to come is an empty outline; `left` is what
// lies on the way but after the answer's end.
function lookOf(item, tree, step) {
  const { node } = item;
  const left = step.kind === "commit" && (node ? node.depth : tree.path.length) > tree.taken;
  if (!node) return { look: "bonus", faint: left, number: null, left };
  if (step.kind === "level") return lookWhileDrafting(item, step);
  const number = step.kind === "rerank" ? node.value : node.p;
  if (node.id === 0) return { look: "root", faint: false, number: null };
  if (step.kind === "rerank") {
    const look = item.folded ? "folded" : node.slot >= 0 ? "kept" : "dropped";
    return { look, faint: look !== "kept", number: item.folded ? null : number };
  }
  if (item.folded) return { look: "folded", faint: true, number: null };
  return { look: node.status, faint: step.kind === "commit" && (left || node.status !== "accepted"), number, left };
}

function lookWhileDrafting(item, step) {
  const { node } = item;
  if (node.depth > step.level) return { look: "ghost", faint: true, number: null };
  if (node.id === 0) return { look: "root", faint: false, number: null };
  if (item.folded) return { look: "folded", faint: node.depth < step.level, number: null };
  const extended = node.depth < step.level && node.children.length > 0;
  const look = extended && node.depth === step.level - 1 ? "extended" : "drafted";
  return { look, faint: node.depth < step.level && !extended, number: node.q };
}

// What the target thinks is known from its pass on.
const isJudged = (step) => step.kind === "verify" || step.kind === "commit";

const NUMBER_WORDS = {
  level: "q: how probable the draft head finds the token after its parent",
  rerank: "the value: the head’s guess that all from the root to the node is right",
  verify: "p: how probable the target finds the token after its parent",
  commit: "p: how probable the target finds the token after its parent",
};

// What there is to say about a node, as [name, value, explanation].
function facts(item, tree, step) {
  const { node } = item;
  if (!node) return [["token", visible(tree.bonus), "the target’s own, drawn where the accepted path ends"]];
  if (item.folded) return foldedFacts(item);
  const judged = isJudged(step);
  const rows =
    node.id === 0
      ? []
      : [
          ["q", probability(node.q), "the draft head’s probability"],
          ["value", probability(node.value), "the head’s guess that all down to here is right"],
          ["rank", String(node.rank + 1), "place among its parent’s children"],
        ];
  if (node.slot >= 0 && node.id && judged) rows.push(["p", probability(node.p), "the target’s probability"]);
  if (node.slot >= 0 && node.id && !judged) rows.push(["p", "?", "known after the target’s pass"]);
  if (node.u !== null && judged)
    rows.push(["u", node.u.toFixed(3), "the number that decided: accepted if small enough"]);
  if (node.choice !== null && judged) rows.push(["next", visible(node.choice), "what the target chose after it"]);
  return rows;
}

const wereDropped = (item) => item.folded.every((node) => node.slot < 0);

function foldedFacts(item) {
  const below = (node) => 1 + sum(node.children.map(below));
  const all = sum(item.folded.map(below));
  const best = [...item.folded].sort((a, b) => a.steps - b.steps).slice(0, 4);
  return [
    [
      "nodes",
      String(all),
      `${all === item.folded.length ? "" : "with those below them; "}${wereDropped(item) ? "all dropped at reranking" : "too many to draw"}`,
    ],
    ["best", best.map((node) => label(node.text, 8)).join("  "), `values from ${probability(best[0].value)} down`],
  ];
}

// The whole of it for those who hear it.
function spokenNode(item, tree, look, step) {
  const { node } = item;
  if (!node) return `${spoken(tree.bonus)}, the target’s own token`;
  if (item.folded) return `${counted(item.folded.length, wereDropped(item) ? "dropped node" : "more node")} under ${spoken(node.parent.text)}`;
  if (node.id === 0) return `${spoken(node.text)}, root: the newest token of the text`;
  const parts = [spoken(node.text), `level ${node.depth}`, LOOKS[look.look].word, `q ${probability(node.q)}`];
  parts.push(`value ${probability(node.value)}`, `rank ${node.rank + 1}`);
  if (node.slot >= 0 && isJudged(step)) parts.push(`p ${probability(node.p)}`);
  return parts.join(", ");
}
