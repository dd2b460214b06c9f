// Reading the exported JSON Schema: references, open unions, defaults. The schema stays the only
// source: what the form shows, fills in and leaves out is all taken from it.

const PREFIX = "#/$defs/";

export const isObject = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value);

export function equal(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, index) => equal(item, b[index]));
  }
  if (isObject(a) && isObject(b)) {
    const keys = Object.keys(a);
    return keys.length === Object.keys(b).length && keys.every((key) => key in b && equal(a[key], b[key]));
  }
  return Object.is(a, b);
}

/** Follows references; what stands beside one wins, as in draft 2020-12. */
export function resolve(node, root) {
  let found = node;
  while (found && found.$ref) {
    const { $ref, ...beside } = found;
    found = { ...root.$defs[$ref.slice(PREFIX.length)], ...beside };
  }
  return found ?? {};
}

const isUnion = (node) => Array.isArray(node.allOf) && Boolean(node.properties?.type?.enum);

const WORDS = { null: "none (null)", string: "text", integer: "number", array: "list", object: "mapping" };

/** The alternatives of a field: `{label, tag?, schema}`; an empty list if it has one form only. */
export function options(node, root) {
  const found = resolve(node, root);
  if (isUnion(found)) {
    return found.allOf.map((branch) => {
      const tag = branch.if.properties.type.const;
      return { label: tag, tag, schema: branch.then };
    });
  }
  const alternatives = found.anyOf ?? found.oneOf;
  if (!alternatives) return [];
  return alternatives.flatMap((item) => {
    const inner = options(item, root);
    if (inner.length) return inner;
    const type = resolve(item, root).type;
    return [{ label: WORDS[type] ?? type ?? "value", schema: item }];
  });
}

function jsonType(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return typeof value;
}

/** Which alternative a value is of: the one with its tag, or the first of its JSON type. */
export function chosen(value, alternatives, root) {
  if (isObject(value) && typeof value.type === "string") {
    const index = alternatives.findIndex((item) => item.tag === value.type);
    if (index >= 0 || alternatives.some((item) => item.tag)) return index;
  }
  const type = jsonType(value);
  return alternatives.findIndex((item) => {
    if (item.tag) return false;
    const wanted = resolve(item.schema, root).type;
    return wanted === type || (wanted === "integer" && type === "number");
  });
}

/** Returns a value with every default written out. */
export function fill(value, node, root) {
  const found = resolve(node, root);
  const alternatives = options(found, root);
  if (alternatives.length) {
    const index = chosen(value, alternatives, root);
    return index < 0 ? value : fill(value, alternatives[index].schema, root);
  }
  if (Array.isArray(value) && isObject(found.items)) {
    return value.map((item) => fill(item, found.items, root));
  }
  if (!isObject(value) || !found.properties) return value;
  const result = {};
  for (const [name, part] of Object.entries(found.properties)) {
    if (name in value) result[name] = fill(value[name], part, root);
    else if ("default" in part) result[name] = fill(part.default, part, root);
    else if ("const" in part) result[name] = part.const;
  }
  return { ...result, ...Object.fromEntries(Object.entries(value).filter(([name]) => !(name in result))) };
}

/** Returns a filled value without what the defaults say anyway. */
export function prune(value, node, root) {
  const found = resolve(node, root);
  const alternatives = options(found, root);
  if (alternatives.length) {
    const index = chosen(value, alternatives, root);
    return index < 0 ? value : prune(value, alternatives[index].schema, root);
  }
  if (Array.isArray(value) && isObject(found.items)) {
    return value.map((item) => prune(item, found.items, root));
  }
  if (!isObject(value) || !found.properties) return value;
  const result = {};
  for (const [name, item] of Object.entries(value)) {
    const part = found.properties[name];
    if (part && "default" in part && equal(item, fill(part.default, part, root))) continue;
    result[name] = part ? prune(item, part, root) : item;
  }
  return result;
}

/** Sets dotted paths, as a preset names them, in the defaults of a run. */
export function runOf(learnable, settings, root) {
  let run = fill({ learnable: { type: learnable } }, root, root);
  for (const [path, value] of Object.entries(settings)) {
    const keys = path.split(".");
    const last = keys.pop();
    let place = run;
    for (const key of keys) {
      // A new `type` starts from nothing: the old settings belong to the old type.
      if (!isObject(place[key]) || (last === "type" && keys.at(-1) === key)) place[key] = {};
      place = place[key];
    }
    place[last] = structuredClone(value);
    run = fill(run, root, root);
  }
  return run;
}

// --- the form's schema ---------------------------------------------------------------------------

const TAG = "x-tag";
const REFERENCE = "x-reference";

/** The alternatives that the form's schema lists, as `options` gives them. */
export const listed = (schema) =>
  schema.oneOf.map((item) => ({
    label: item.title,
    tag: item[TAG],
    schema: item[REFERENCE] ? { $ref: item[REFERENCE] } : item,
  }));

const HIDDEN = new Set(["type", "schema_version"]);

/**
 * Rewrites the exported schema for the form library: unions as a list of titled alternatives, no
 * defaults (the data is always full), no tags (the list above chooses them). Only the form uses
 * it; documents are checked against the schema as it was exported.
 */
export function formSchema(root, learnable) {
  const convert = (node) => {
    const alternatives = options(node, root);
    const { description } = resolve(node, root);
    if (alternatives.length) {
      // The library resolves references on the way, so each alternative says itself what it is.
      const oneOf = alternatives.map((item) => ({
        title: item.label,
        [TAG]: item.tag,
        [REFERENCE]: item.schema.$ref,
        ...formOf(item.schema),
      }));
      return { ...(node.description || !node.$ref ? { description } : {}), oneOf };
    }
    return { ...formOf(node), ...(node.description ? { description: node.description } : {}) };
  };
  const formOf = (node) => {
    if (node.$ref) return { $ref: node.$ref };
    const result = { ...node };
    delete result.$defs;
    delete result.additionalProperties;
    delete result.required;
    if (!node.enum && node.type !== "boolean") delete result.default;
    if (node.additionalProperties === true) result.additionalProperties = true;
    if (node.properties) {
      const shown = Object.entries(node.properties).filter(([name]) => !HIDDEN.has(name));
      result.properties = Object.fromEntries(shown.map(([name, part]) => [name, convert(part)]));
    }
    if (isObject(node.items)) result.items = convert(node.items);
    return result;
  };
  const names = Object.keys(root.$defs);
  const $defs = Object.fromEntries(names.map((name) => [name, convert(root.$defs[name])]));
  const all = options(root.properties.learnable, root);
  const member = all.find((item) => item.tag === learnable);
  const { properties } = formOf(root);
  return { type: "object", properties: { ...properties, learnable: { ...member.schema } }, $defs };
}

/** The range of a value in words, e.g. `0 < x <= 1`. */
export function range(node) {
  const low = node.exclusiveMinimum ?? node.minimum;
  const high = node.exclusiveMaximum ?? node.maximum;
  if (low === undefined && high === undefined) return "";
  const left = low === undefined ? "" : `${short(low)} ${"exclusiveMinimum" in node ? "<" : "<="} `;
  const right = high === undefined ? "" : ` ${"exclusiveMaximum" in node ? "<" : "<="} ${short(high)}`;
  return `${left}x${right}`;
}

const short = (number) => (/^-?[1-9]0{6,}$/.test(String(number)) ? number.toExponential().replace("+", "") : String(number));
