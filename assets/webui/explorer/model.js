// Data -> runs, cycles and trees that the views read. Strict: what does not fit is refused with its place.

const STEPS_PER_NAT = 10000;
const MOST_NODES_OF_A_TREE = 100000;
const STATUS = { a: "accepted", r: "rejected", u: "unreached" };
const STAGES = ["draft", "verify", "sample", "commit", "other"];

function expect(holds, where, what) {
  if (!holds) throw new Error(`This is not the data of a draft tree: ${where}: ${what} expected.`);
}

// What an action gives; where a part of the data that it reads is not there at all, that is said.
function wholly(where, action) {
  try {
    return action();
  } catch (error) {
    if (error instanceof TypeError) expect(false, where, "all parts");
    throw error;
  }
}

const isCount = (value) => Number.isInteger(value) && value >= 0;
const isText = (value) => typeof value === "string";

function readData(data) {
  expect(data && typeof data === "object", "the page", "an object");
  expect(data.version === 1, "the page", "version 1");
  expect(Array.isArray(data.runs), "runs", "a list");
  const costs = new Map();
  for (const [nodes, seconds] of Object.entries(data.costs ?? {})) {
    if (Number(nodes) >= 1 && seconds > 0) costs.set(Number(nodes), seconds);
  }
  const plain = secondsByStage(data.plain);
  const runs = wholly("runs", () => data.runs.map((run, place) => new RunModel(run, `run ${place + 1}`)));
  return { runs, costs, plain: sum(Object.values(plain)) ? plain : null };
}

function secondsByStage(found) {
  const seconds = {};
  for (const [stage, value] of Object.entries(found ?? {})) if (value >= 0) seconds[stage] = value;
  return seconds;
}

// A list of tokens: ids and texts side by side.
function readTable(table, where) {
  const { ids, texts } = table ?? { ids: [], texts: [] };
  expect(Array.isArray(ids) && Array.isArray(texts) && ids.length === texts.length, where, "ids and texts");
  expect(ids.every(Number.isInteger) && texts.every(isText), where, "numbers and texts");
  return { ids, texts };
}

class RunModel {
  constructor(run, where) {
    expect(run && Array.isArray(run.cycles), where, "a list of cycles");
    this.where = where;
    this.question = isText(run.question) ? run.question : null;
    this.about = run.about && typeof run.about === "object" ? run.about : {};
    this.table = readTable(run.table, `${where}, table`);
    this.end = run.end && typeof run.end === "object" ? run.end : null;
    this.cycles = [];
    this.tokens = [];
    run.cycles.forEach((cycle) => this.push(cycle));
  }

  // One more cycle; with a table of its own where it comes live.
  push(cycle) {
    const table = cycle && cycle.table ? readTable(cycle.table, this.where) : this.table;
    const model = new CycleModel(cycle, table, this.tokens.length, `${this.where}, cycle ${this.cycles.length}`);
    this.cycles.push(model);
    this.tokens.push(...model.tokens);
  }

  get decoding() {
    return this.cycles.filter((cycle) => cycle.n > 0);
  }

  get policy() {
    return isText(this.about.policy) ? this.about.policy : "none";
  }

  get rule() {
    const sampling = this.about.sampling ?? {};
    if (!(sampling.temperature > 0)) return "greedy";
    return sampling.verify === "rejection" ? "rejection" : "coupled";
  }

  // Whether somebody stopped it.
  get cut() {
    return this.end !== null && this.end.reason === "cancelled";
  }

  // Whether nothing comes after this cycle.
  endsWith(cycle) {
    return this.end !== null && cycle === this.cycles[this.cycles.length - 1];
  }

  get plain() {
    return this.policy === "none" || !this.about.head;
  }

  get title() {
    if (this.plain) return "plain decoding";
    const nodes = this.about.tree && this.about.tree.total_tokens;
    return isCount(nodes) ? `${this.policy} tree, ${counted(nodes, "node")}` : `${this.policy} tree`;
  }

  // Tokens for each pass of the target, up to a cycle.
  tau(upTo = this.cycles.length - 1) {
    const cycles = this.cycles.slice(0, upTo + 1).filter((cycle) => cycle.n > 0);
    return cycles.length ? sum(cycles.map((cycle) => cycle.tokens.length)) / cycles.length : null;
  }

  // Mean seconds of a decoding cycle by stage, or null.
  meanSeconds() {
    const cycles = this.decoding;
    if (!cycles.length) return null;
    const mean = Object.fromEntries(STAGES.map((stage) => [stage, 0]));
    for (const cycle of cycles) for (const stage of STAGES) mean[stage] += (cycle.seconds[stage] ?? 0) / cycles.length;
    return mean;
  }
}

class CycleModel {
  constructor(cycle, table, start, where) {
    expect(cycle && typeof cycle === "object", where, "an object");
    expect(isCount(cycle.n) && Array.isArray(cycle.out) && Array.isArray(cycle.pieces), where, "tokens and pieces");
    expect(isText(cycle.origins) && cycle.origins.length === cycle.out.length, where, "an origin for each token");
    expect(cycle.pieces.length === cycle.out.length && cycle.pieces.every(isText), where, "a text for each token");
    this.n = cycle.n;
    this.start = start; // how many tokens of the answer are older
    this.tokens = cycle.out.map((id, place) => {
      const origin = cycle.n === 0 ? "plain" : cycle.origins[place] === "d" ? "draft" : "bonus";
      return { id, text: cycle.pieces[place], origin };
    });
    this.accepted = isCount(cycle.accepted) ? cycle.accepted : 0;
    this.levels = isText(cycle.levels) ? [...cycle.levels].map((sign) => sign === "1") : [];
    this.seconds = secondsByStage(cycle.seconds);
    this.total = sum(Object.values(this.seconds));
    this.numNodes = isCount(cycle.num_nodes) ? cycle.num_nodes : 1;
    this.raw = cycle.tree ?? null;
    this.table = table;
    this.where = where;
    this.known = null;
  }

  get traced() {
    return this.raw !== null;
  }

  // The tree, made when it is first asked for.
  get tree() {
    if (this.raw && !this.known) {
      this.known = wholly(this.where, () => readTree(this.raw, this.table, this.where));
      this.known.taken = this.tokens.length; // of the path, which the answer's end may cut
    }
    return this.known;
  }

  // A long recording has more trees than need to be in memory at once.
  forget() {
    this.known = null;
  }
}

function readTree(raw, table, where) {
  const size = Array.isArray(raw.token) ? raw.token.length : 0;
  expect(size >= 1 && size <= MOST_NODES_OF_A_TREE, where, "a tree of a bearable size");
  const text = (place) => {
    expect(isCount(place) && place < table.texts.length, where, "tokens of the table");
    return table.texts[place];
  };
  const log = (steps) => (steps === null ? null : Math.exp(-steps / STEPS_PER_NAT));
  const parents = [];
  for (let place = 0; place + 1 < raw.parent.length; place += 2) {
    const [parent, count] = [raw.parent[place], raw.parent[place + 1]];
    expect(isCount(parent) && isCount(count) && parents.length + count < size, where, "parents for the nodes");
    for (let i = 0; i < count; i += 1) parents.push(parent);
  }
  expect(parents.length === size - 1 && raw.q.length === size - 1, where, "a parent and a q for each node");
  const nodes = [];
  for (let id = 0; id < size; id += 1) {
    const parent = id ? nodes[parents[id - 1]] : null;
    expect(id === 0 || parent !== undefined, where, "parents in front of their children");
    const steps = id ? raw.q[id - 1] : 0;
    const value = raw.value && id ? raw.value[id - 1] : (parent ? parent.steps : 0) + (steps ?? 0);
    const node = {
      id,
      parent,
      children: [],
      depth: parent ? parent.depth + 1 : 0,
      text: text(raw.token[id]),
      token: table.ids[raw.token[id]],
      q: log(steps),
      steps: value,
      value: log(value),
      slot: -1,
      p: null,
      rank: parent ? (raw.rank ? raw.rank[id - 1] : parent.children.length) : 0,
      status: null,
      choice: null,
      u: null,
    };
    if (parent) parent.children.push(node);
    nodes.push(node);
  }
  return judge({ nodes, depth: nodes.reduce((most, node) => Math.max(most, node.depth), 0) }, raw, text, log, where);
}

function judge(tree, raw, text, log, where) {
  tree.kept = raw.kept.map((id, slot) => {
    expect(isCount(id) && id < tree.nodes.length && tree.nodes[id].slot < 0, where, "each kept node once");
    const node = tree.nodes[id];
    expect(!node.parent || node.parent.slot >= 0, where, "no kept node without its parent");
    node.slot = slot;
    node.p = slot ? log(raw.p[slot] ?? null) : 1;
    node.status = STATUS[raw.status[slot]] ?? "unreached";
    return node;
  });
  const slot = (place) => {
    expect(isCount(place) && place < tree.kept.length, where, "slots of the tree");
    return tree.kept[place];
  };
  for (const [place, token] of raw.choice) slot(place).choice = text(token);
  for (const [place, u] of raw.u ?? []) slot(place).u = u;
  tree.path = raw.path.map(slot);
  const connected = tree.path.every((node, place) => node.parent === (place ? tree.path[place - 1] : null));
  expect(tree.path.length >= 1 && connected, where, "a path from the root");
  tree.end = tree.path[tree.path.length - 1];
  tree.bonus = text(raw.bonus);
  return tree;
}
