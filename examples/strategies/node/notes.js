// A strategy for Escrow in JavaScript, without any library: the protocol is enough.
//
// The resource is a JSON file in which every key is an item; a sandbox is a copy of it beside the original. See
// docs/spec/plugin-protocol.md; the numbers are those of its rules.
"use strict";

const fs = require("fs");
const path = require("path");
const readline = require("readline");

const load = (at) => JSON.parse(fs.readFileSync(at, "utf8"));

const save = (at, values) => {
  const file = fs.openSync(at + ".new", "w");
  fs.writeSync(file, JSON.stringify(values));
  fs.fsyncSync(file);
  fs.closeSync(file);
  fs.renameSync(at + ".new", at);
};

const changes = (old, now) => {
  const keys = [...new Set([...Object.keys(old), ...Object.keys(now)])].sort();
  const kind = (key) => (!(key in old) ? "added" : !(key in now) ? "deleted" : "modified");
  return keys.filter((key) => old[key] !== now[key]).map((key) => ({ path: key, kind: kind(key) }));
};

class Refusal extends Error {
  constructor(kind, message, where) {
    super(message);
    this.data = where === undefined ? { kind } : { kind, path: where };
  }
}

let scratch = "";
const bytes = (content) =>
  content.file ? fs.readFileSync(path.join(scratch, content.file)) : Buffer.from(content.base64, "base64");
const original = (ref) => ref.metadata.original;
const own = (ref) => ref.metadata.own;
const base = (ref) => own(ref) + ".base";

const put = (at, wanted) => {
  const values = load(at);
  for (const [key, value] of Object.entries(wanted)) {
    if (value === null) delete values[key];
    else values[key] = value;
  }
  save(at, values);
};

const methods = {
  // The nine verbs (W24 to W31).
  create({ plan_id, resource }) {
    const at = resource.location.value;
    const metadata = { original: at, own: `${at}.${plan_id}` };
    save(metadata.own, load(at));
    save(metadata.own + ".base", load(at));
    return { metadata };
  },
  read({ ref, path: item }) {
    const values = load(own(ref));
    if (!(item in values)) throw new Refusal("not_there", `there is no ${item}`, item);
    return { content: { base64: values[item] } };
  },
  write({ ref, path: item, content }) {
    const kind = item in load(own(ref)) ? "modified" : "added";
    put(own(ref), { [item]: bytes(content).toString("base64") });
    return { path: item, kind };
  },
  diff({ ref, from_checkpoint, to_checkpoint }) {
    return { changes: changes(from_checkpoint ?? load(base(ref)), to_checkpoint ?? load(own(ref))) };
  },
  commit({ ref, intent }) {
    put(original(ref), Object.fromEntries(Object.entries(intent).map(([key, [, now]]) => [key, now])));
    return null;
  },
  rollback({ ref }) {
    for (const at of [base(ref), own(ref)]) save(at, load(original(ref)));
    return { message: "discarded" };
  },
  checkpoint: ({ ref }) => ({ checkpoint_id: load(own(ref)) }),
  restore_checkpoint({ ref, checkpoint_id }) {
    save(own(ref), checkpoint_id);
    return null;
  },
  cleanup({ ref }) {
    if (ref.metadata) for (const at of [base(ref), own(ref)]) fs.rmSync(at, { force: true });
    return null;
  },
  // With these it is a full participant of atomic commits (W32 to W35).
  preview({ ref }) {
    const [before, there] = [load(base(ref)), load(original(ref))];
    const found = changes(before, load(own(ref)));
    const moved = found.filter((one) => before[one.path] !== there[one.path]);
    return { changes: found, conflicts: moved.map((one) => ({ path: one.path, what: "changed there since" })) };
  },
  prepare({ ref, changes: wanted }) {
    const [there, now] = [load(original(ref)), load(own(ref))];
    return { intent: Object.fromEntries(wanted.map(({ path: key }) => [key, [there[key] ?? null, now[key] ?? null]])) };
  },
  undo({ ref, intent }) {
    put(original(ref), Object.fromEntries(Object.entries(intent).map(([key, [old]]) => [key, old])));
    return null;
  },
  // For `escrow strategy check` (W42).
  fixture({ directory }) {
    const at = path.join(directory, "notes.json");
    const content = Buffer.from("its own").toString("base64");
    save(at, { known: content, other: content });
    return { type: "notes", location: { kind: "opaque", value: at }, known: { path: "known", base64: content }, absent: "absent" };
  },
  fixture_contents: ({ resource }) => ({
    contents: Object.entries(load(resource.location.value)).map(([key, base64]) => ({ path: key, base64 })),
  }),
  fixture_change({ resource, path: item, content }) {
    put(resource.location.value, { [item]: bytes(content).toString("base64") });
    return null;
  },
};

const initialize = (params) => {
  scratch = params.scratch;
  return { protocol_version: 1, name: "notes", methods: Object.keys(methods), resource_types: ["notes"] };
};

const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return; // a notification
  try {
    const known = method === "initialize" ? initialize : methods[method];
    if (!known) throw new Refusal("unsupported", `there is no ${method}`);
    send({ id, result: known(params) });
  } catch (error) {
    send({ id, error: { code: -32000, message: error.message, data: error.data ?? { kind: "failed" } } });
  }
});
