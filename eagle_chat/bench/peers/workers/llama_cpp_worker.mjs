// llama.cpp (by node-llama-cpp) as a process that answers questions and times itself; the protocol is that of
// python_worker.py. Usage: node llama_cpp_worker.mjs CONFIG, with `package` (folder of node_modules/node-llama-cpp),
// `gguf`, `threads`, `max_length` and `lookup` (draft tokens from the prompt, 0 for none).

import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const config = JSON.parse(process.argv[2]);
const about = JSON.parse(readFileSync(path.join(config.package, "package.json"), "utf8"));
const library = await import(pathToFileURL(path.join(config.package, "dist", "index.js")).href);
const { getLlama, InputLookupTokenPredictor, LlamaLogLevel } = library;

const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: config.threads });
const model = await llama.loadModel({ modelPath: config.gguf });
const context = await model.createContext({
  contextSize: config.max_length,
  threads: { ideal: config.threads, min: config.threads },
});
const predictor = config.lookup
  ? new InputLookupTokenPredictor({ predictionLength: { max: config.lookup } })
  : undefined;
const sequence = context.getSequence({ tokenPredictor: predictor });

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const release = llama.llamaCppRelease?.release ?? "unknown";
say({ ready: { "node-llama-cpp": about.version, "llama.cpp": release } });

async function answer({ prompt, max_new_tokens: budget, stop_ids: stops }) {
  await sequence.clearHistory(); // every question is new
  predictor?.updateInputTokens(prompt);
  const tokens = [];
  const begin = performance.now();
  let first = null;
  for await (const token of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    tokens.push(token);
    first ??= performance.now() - begin;
    if (tokens.length >= budget || stops.includes(token)) break;
  }
  const seconds = (performance.now() - begin) / 1000;
  const steps = predictor ? null : tokens.length; // with a draft the library does not tell
  return { token_ids: tokens, first_tokens: 1, first_seconds: first / 1000, seconds, steps };
}

for await (const line of createInterface({ input: process.stdin })) {
  say(await answer(JSON.parse(line)));
}
process.exit(0);
