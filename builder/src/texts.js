// A config as text: YAML, Python, the command line; and YAML back into a config.

import { Document, LineCounter, isSeq, isScalar, parseDocument, visit } from "yaml";
import { equal, fill, isObject, prune } from "./schema.js";

const MODELINE = "# yaml-language-server: $schema=schemas/run.schema.json\n";

export function yamlText(run, schema, isFull) {
  // Some readers take `yes` or `1e-7` for something else: quoted, or with a point, none does.
  const document = new Document(isFull ? run : prune(run, schema, schema), { compat: "yaml-1.1" });
  visit(document, {
    Seq(_, node) {
      if (node.items.every((item) => isScalar(item) || (isSeq(item) && item.items.every(isScalar)))) node.flow = true;
    },
    Scalar(_, node) {
      if (typeof node.value === "number" && /^-?\d+e/.test(String(node.value))) {
        node.source = String(node.value).replace("e", ".0e");
        node.format = "EXP";
        node.minFractionDigits = 1;
      }
    },
  });
  return MODELINE + document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

// --- Python --------------------------------------------------------------------------------------

const PYTHON_WORDS = new Map([[null, "None"], [true, "True"], [false, "False"]]);

function literal(value, indent = "") {
  if (PYTHON_WORDS.has(value)) return PYTHON_WORDS.get(value);
  if (Array.isArray(value)) return `[${value.map((item) => literal(item, indent)).join(", ")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const parts = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${literal(item, indent + "    ")}`);
  const line = `{${parts.join(", ")}}`;
  if (line.length + indent.length < 80 && !line.includes("\n")) return line;
  return `{\n${parts.map((part) => `${indent}    ${part},\n`).join("")}${indent}}`;
}

export function pythonText(run, schema) {
  const { learnable, ...rest } = prune(run, schema, schema);
  const { type, ...settings } = learnable;
  if (Object.keys(rest).length) {
    return `import rlreg\n\nrun = rlreg.load_config(${literal({ learnable, ...rest })})\nresult = rlreg.train(run)\n`;
  }
  const parts = Object.entries(settings).map(([key, item]) => `${key}=${literal(item, "    ")}`);
  const call = [JSON.stringify(type), ...parts];
  const flat = `config = rlreg.make_config(${call.join(", ")})`;
  const text = flat.length < 90 && !flat.includes("\n") ? flat : `config = rlreg.make_config(\n${call.map((part) => `    ${part},\n`).join("")})`;
  return `import rlreg\n\n${text}\nlearnable = rlreg.create(config)\n`;
}

// --- the command line ----------------------------------------------------------------------------

const PLAIN = /^[A-Za-z/][A-Za-z0-9_./-]*$/;
const RESERVED = new Set(["y", "n", "yes", "no", "on", "off", "true", "false", "null"]);

export function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (isObject(value)) return `{${Object.entries(value).map(([key, item]) => `${flow(key)}: ${flow(item)}`).join(", ")}}`;
  if (typeof value === "string" && PLAIN.test(value) && !RESERVED.has(value.toLowerCase())) return value;
  return JSON.stringify(value);
}

const quoted = (text) => (/^[A-Za-z0-9_./=:,+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The smallest settings that lead from one full run to another, as `[path, value]`. */
function* changes(from, to, path, schema) {
  if (isObject(from) && isObject(to) && from.type === to.type) {
    for (const key of Object.keys(to)) {
      if (!(key in from)) yield [[...path, key], to[key]];
      else yield* changes(from[key], to[key], [...path, key], schema);
    }
  } else if (!equal(from, to)) {
    yield [path, to];
  }
}

export function commandText(run, base, preset, schema) {
  const parts = [`rlreg train ${quoted(run.learnable.type)}`];
  if (preset) parts.push(`--preset ${quoted(preset)}`);
  for (const [path, value] of changes(base, run, [], schema)) {
    parts.push(`--set ${quoted(`${path.join(".")}=${flow(short(value, path, schema))}`)}`);
  }
  return `${parts.join(" \\\n  ")}\n`;
}

/** A whole component leaves out what its defaults say; where it stands is known by its path. */
function short(value, path, schema) {
  let document = value;
  for (const key of [...path].reverse()) document = { [key]: document };
  let pruned = prune(fill(document, schema, schema), schema, schema);
  for (const key of path) pruned = pruned?.[key];
  return isObject(value) && isObject(pruned) ? pruned : value;
}

// --- reading YAML --------------------------------------------------------------------------------

/** Parses what a user pasted: `{run, errors, lineOf}`; a learnable's own file is put into a run. */
export function readYaml(text) {
  const lines = new LineCounter();
  const document = parseDocument(text, { version: "1.2", uniqueKeys: true, merge: false, lineCounter: lines });
  if (document.errors.length) {
    return { errors: document.errors.map((error) => error.message.split("\n")[0].replace(/:$/, "")) };
  }
  let data;
  try {
    data = document.toJS();
  } catch (error) {
    return { errors: [error.message] }; // aliases that multiply without end
  }
  if (!isObject(data) || !("learnable" in data || "type" in data)) {
    return { errors: ["Expected `learnable` (a run) or `type` (a learnable) at the top."] };
  }
  const isRun = "learnable" in data;
  const lineOf = (path) => {
    let keys = isRun ? path : path.slice(1);
    for (; keys.length; keys = keys.slice(0, -1)) {
      const node = document.getIn(keys, true);
      if (node?.range) return lines.linePos(node.range[0]).line;
    }
    return null;
  };
  return { run: isRun ? data : { learnable: data }, errors: [], lineOf };
}
