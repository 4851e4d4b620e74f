// A cycle told in steps, each a paragraph with the cycle's own numbers. A paragraph is a list of texts and tokens;
// `{token}` stands for a token as it is, `{strong}` for a number that matters.

const token = (text) => ({ token: text });
const strong = (text) => ({ strong: String(text) });

// [{kind, level, name}]
function stepsOf(run, cycle) {
  if (cycle.n === 0) return [{ kind: "prefill", name: "Prefill" }];
  const tree = cycle.tree;
  if (!tree) return [{ kind: "commit", name: "Commit" }];
  const steps = [];
  for (let level = 1; level <= tree.depth; level += 1) {
    steps.push({ kind: "level", level, name: level === 1 ? "Level 1" : String(level), spoken: `Level ${level}` });
  }
  if (run.policy === "dynamic" && tree.depth) steps.push({ kind: "rerank", name: "Rerank" });
  steps.push({ kind: "verify", name: "Verify" }, { kind: "commit", name: "Commit" });
  return steps;
}

function explain(run, cycle, step) {
  const tellers = {
    prefill: tellPrefill,
    level: tellLevel,
    rerank: tellRerank,
    verify: tellVerify,
    commit: tellCommit,
  };
  return tellers[step.kind](run, cycle, step);
}

function listed(texts, most = 3) {
  const shown = texts.slice(0, most).flatMap((text, place) => (place ? [", ", token(text)] : [token(text)]));
  return texts.length > most ? [...shown, ` and ${texts.length - most} more`] : shown;
}

function tellPrefill(run, cycle) {
  const about = isCount(run.about.prompt_tokens)
    ? `${counted(run.about.prompt_tokens, "token")} of the prompt`
    : "prompt";
  const text = cycle.tokens.length ? cycle.tokens[0].text : "";
  return [
    "Before any drafting the target reads the ",
    about,
    " once",
    cycle.total ? ` (${duration(cycle.total)})` : "",
    " and draws the first token, ",
    token(text),
    ", by itself.",
    run.endsWith(cycle) ? ending(run, cycle) : run.plain ? "" : " It becomes the root of the first tree.",
  ];
}

// Why nothing comes after the last cycle.
function ending(run, cycle) {
  const last = cycle.tokens[cycle.tokens.length - 1];
  const sign = last && last.text === "" ? ", with a sign that is not shown" : "";
  const reasons = {
    stop: ` The model ends its answer here${sign}.`,
    length: " Here the answer is as long as it may be.",
    cancelled: " Here it was stopped.",
    context: " Here the context is full.",
  };
  // The way has the root, which is not new, and not the target's own token, which is.
  const dropped = cycle.tree ? cycle.tree.path.length - cycle.tokens.length : 0;
  const rest =
    dropped > 0
      ? ` ${counted(dropped, "token")} more of the way through the tree ${dropped === 1 ? "is" : "are"} left out.`
      : "";
  return `${reasons[run.end.reason] ?? " Here the answer ends."}${rest}`;
}

function tellLevel(run, cycle, step) {
  const { tree } = cycle;
  const nodes = tree.nodes.filter((node) => node.depth === step.level);
  if (step.level === 1) {
    const best = nodes.reduce((a, b) => (b.q > a.q ? b : a));
    return [
      "The text so far ends in ",
      token(tree.nodes[0].text),
      ", the root. From what the target computed there, the small ",
      "draft head guesses the next token: ",
      nodes.length === 1 ? "its guess is " : "its ",
      nodes.length === 1 ? "" : strong(nodes.length),
      nodes.length === 1 ? "" : " best guesses are level 1, and it is surest of ",
      token(best.text),
      " (q = ",
      strong(probability(best.q)),
      ").",
    ];
  }
  const extended = [...new Set(nodes.map((node) => node.parent))].sort((a, b) => a.steps - b.steps);
  const names = listed(extended.map((node) => node.text));
  if (run.policy !== "dynamic") {
    const short = run.cycles.some((other) => other.numNodes > cycle.numNodes);
    return [
      `Level ${step.level} of the fixed tree: `,
      names,
      extended.length === 1 ? " was" : " were",
      " run through the draft head, which gave ",
      strong(counted(nodes.length, "new node")),
      ". A fixed tree extends the ",
      "same places in every cycle, however sure the head is",
      short ? "; this one is smaller, for not much more was to be written." : ".",
    ];
  }
  const each = Math.round(nodes.length / extended.length);
  return [
    `Level ${step.level}: the ${extended.length === 1 ? "" : `${extended.length} `}most promising `,
    extended.length === 1 ? "node of level " : "nodes of level ",
    String(step.level - 1),
    " (",
    names,
    ") ",
    extended.length === 1 ? "was" : "were",
    " extended: the draft head gave ",
    extended.length === 1 ? "it " : "each ",
    each === 1 ? "its best continuation, " : `its ${each} best continuations, `,
    strong(counted(nodes.length, "new node")),
    ". Promising means a high value: the ",
    "head’s guess that the whole way from the root is right.",
  ];
}

function tellRerank(run, cycle) {
  const { tree } = cycle;
  const drafted = tree.nodes.length - 1;
  const kept = tree.kept.slice(1);
  if (!kept.length || kept.length === drafted) {
    return ["All ", strong(counted(drafted, "drafted node")), " fit into the tree: none is dropped."];
  }
  const least = kept.reduce((a, b) => (b.steps > a.steps ? b : a));
  return [
    "A node’s value is the head’s guess that everything up to it is right: the product of the q’s down to it, where no noise is shared. Of ",
    strong(drafted),
    " drafted nodes the ",
    strong(kept.length),
    kept.length === 1 ? " most valuable stays and " : " most valuable stay and ",
    strong(drafted - kept.length),
    drafted - kept.length === 1 ? " is dropped. The least" : " are dropped. The least valuable that stays is ",
    token(least.text),
    " (",
    probability(least.value),
    `). With the root, ${tree.kept.length} nodes go to the target.`,
  ];
}

function tellVerify(run, cycle) {
  const { tree } = cycle;
  if (tree.kept.length === 1) {
    return [
      "Nothing was drafted: one pass of the target over one node gives its own next token, ",
      token(tree.bonus),
      ".",
    ];
  }
  const accepted = tree.path.slice(1).map((node) => node.text);
  const rejected = tree.kept.filter((node) => node.status === "rejected").length;
  const unreached = tree.kept.filter((node) => node.status === "unreached").length;
  return [
    "One pass of the target reads all ",
    strong(tree.kept.length),
    " nodes at once, each seeing only its own path (the mask). ",
    ...tellRule(run),
    " ",
    accepted.length ? ["Accepted: ", listed(accepted, 6), ". "] : ["No drafted token is accepted. "],
    "Then ",
    tree.end.children.some((child) => child.slot >= 0) ? "no branch fits" : "the path ends",
    ", and the target’s own token ",
    token(tree.bonus),
    " follows. ",
    `${rejected} rejected, ${unreached} never reached.`,
  ];
}

function tellRule(run) {
  if (run.rule === "greedy")
    return ["From the root on, a node is accepted if it is what the target itself finds most likely."];
  if (run.rule === "coupled") {
    return ["From the root on, the target draws its token as it would alone; a node is accepted if it is that token."];
  }
  return ["From the root on, a node is accepted with the chance that keeps the target’s own distribution."];
}

function tellCommit(run, cycle, step, index = run.cycles.indexOf(cycle)) {
  const drafted = cycle.tokens.filter((one) => one.origin === "draft").length;
  const own = cycle.tokens.length - drafted;
  const parts = [drafted ? `${drafted} drafted` : "", own ? `${own} of the target’s own` : ""]
    .filter(Boolean)
    .join(" and ");
  const spent = cycle.total
    ? [
        ` It took ${duration(cycle.total)}, of which the target’s pass ${percent((cycle.seconds.verify ?? 0) / cycle.total)} and drafting ${percent((cycle.seconds.draft ?? 0) / cycle.total)}.`,
      ]
    : [];
  return [
    strong(counted(cycle.tokens.length, "token")),
    ` (${parts}) `,
    cycle.tokens.length === 1 ? "joins" : "join",
    " the answer for one pass of the target.",
    spent,
    " So far: τ = ",
    strong(hundredths(run.tau(index))),
    " tokens a pass; plain decoding has 1.",
    run.endsWith(cycle) ? ending(run, cycle) : run.plain ? "" : " The newest token is the root of the next tree.",
  ];
}

function paragraph(parts) {
  return parts.flat(Infinity).map((part) => {
    if (typeof part === "string") return part;
    return part.token !== undefined ? tokenChip(part.token) : make("strong", {}, part.strong);
  });
}
