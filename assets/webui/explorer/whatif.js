// What other trees would have done on the recorded drafts.
//
// The answer is known, so for every recorded root it is known what the target says next. Of the recorded draft we keep
// what a smaller tree would have drafted (its depth, its children per node), rank that by value as reranking does, and
// see how far a tree of N nodes would have followed the answer. At the recorded settings this gives the recorded τ.

// [cycles][tokens]: for a cycle, the least number of nodes (root included) that a tree needs to give 2, 3, ... tokens.
function nodesNeeded(run, depth, topK) {
  const all = run.tokens;
  return run.decoding
    .filter((cycle) => cycle.traced)
    .map((cycle) => {
      const fresh = cycle.known === null;
      const { tree } = cycle;
      const place = new Map();
      restricted(tree, depth, topK, run.policy === "dynamic").forEach((node, order) => place.set(node, order + 2));
      const needed = [];
      let node = tree.nodes[0];
      for (let at = cycle.start; at < all.length - 1; at += 1) {
        node = node.children.find((child) => child.token === all[at].id && place.has(child));
        if (!node) break;
        needed.push(Math.max(place.get(node), needed[needed.length - 1] ?? 0));
      }
      if (fresh) cycle.forget();
      return needed;
    });
}

// The drafted nodes that a tree of this depth and width would have had, the most valuable first.
function restricted(tree, depth, topK, dynamic) {
  const chosen = [];
  let level = tree.nodes[0].children.filter((node) => node.rank < topK);
  for (let at = 1; at <= depth && level.length; at += 1) {
    chosen.push(...level);
    const extended = dynamic ? [...level].sort((a, b) => a.steps - b.steps || a.id - b.id).slice(0, topK) : level;
    level = extended.flatMap((node) => node.children.filter((child) => child.rank < topK)).sort((a, b) => a.id - b.id);
  }
  // A fixed tree is not ranked: its nodes come in the order in which it lists them.
  return dynamic ? chosen.sort((a, b) => a.steps - b.steps || a.id - b.id) : chosen;
}

const tauAt = (needed, nodes) =>
  1 + sum(needed.map((one) => one.filter((least) => least <= nodes).length)) / needed.length;

const ENOUGH_PASSES = 3;

// [[nodes, seconds]]: what passes were measured to cost, else what those of the answers here took by their size. Never
// falling: a larger pass that seems to cost less was measured at a quieter moment.
function passPoints(costs, runs) {
  const points = costs.size > 1 ? [...costs] : passesOf(runs);
  points.sort((a, b) => a[0] - b[0]);
  points.forEach((point, place) => (point[1] = Math.max(point[1], place ? points[place - 1][1] : 0)));
  return points;
}

function passesOf(runs) {
  const bySize = new Map();
  for (const { numNodes, seconds } of runs.flatMap((run) => run.decoding)) {
    if (seconds.verify > 0) bySize.set(numNodes, [...(bySize.get(numNodes) ?? []), seconds.verify]);
  }
  const points = [...bySize].map(([nodes, times]) => [nodes, sum(times) / times.length]);
  const often = points.filter(([nodes]) => bySize.get(nodes).length >= ENOUGH_PASSES);
  return often.length ? often : points;
}

// Seconds of a target pass over some nodes: measured sizes, and straight lines between them.
class PassCosts {
  constructor(points) {
    this.points = [...points].sort((a, b) => a[0] - b[0]);
  }

  // Beyond the largest measured size the last line goes on.
  at(nodes) {
    const { points } = this;
    if (points.length === 1) return points[0][1];
    const above = points.findIndex(([size]) => size >= nodes);
    const last = points.length - 1;
    const [[n1, s1], [n2, s2]] =
      above < 0 ? [points[last - 1], points[last]] : [points[Math.max(above - 1, 0)], points[Math.max(above, 1)]];
    return Math.max(s1 + ((nodes - n1) / (n2 - n1)) * (s2 - s1), 0);
  }
}
