// Checking a document against the exported schema itself, and saying what is wrong in words.

import Ajv2020 from "ajv/dist/2020.js";

const VAGUE = new Set(["if", "anyOf", "oneOf", "allOf"]);

export function makeChecker(schema) {
  const validate = new Ajv2020({ allErrors: true, strict: false }).compile(schema);
  return (document) => (validate(document) ? [] : problemsOf(validate.errors));
}

function problemsOf(errors) {
  const problems = errors.map((error) => ({
    path: pathOf(error.instancePath),
    keyword: error.keyword,
    key: error.params.additionalProperty ?? error.params.missingProperty ?? null,
    message: wordsOf(error),
    isNull: error.keyword === "type" && error.params.type === "null",
  }));
  // "must match one of" says nothing that the branches do not say better; nor does "must be null".
  const isBelow = (a, b) => b.path.every((part, index) => a.path[index] === part);
  const useful = problems.filter(
    (item) =>
      !(VAGUE.has(item.keyword) || item.isNull) ||
      !problems.some((other) => other !== item && !VAGUE.has(other.keyword) && !other.isNull && isBelow(other, item)),
  );
  const known = new Set();
  return useful.filter((item) => {
    const text = JSON.stringify([item.path, item.message]);
    return known.has(text) ? false : known.add(text);
  });
}

function pathOf(pointer) {
  return pointer
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"))
    .map((part) => (/^(0|[1-9]\d*)$/.test(part) ? Number(part) : part));
}

function wordsOf(error) {
  const { keyword, params } = error;
  if (keyword === "additionalProperties") return `has no setting '${params.additionalProperty}'`;
  if (keyword === "required") return `needs '${params.missingProperty}'`;
  if (keyword === "enum") return `must be one of ${params.allowedValues.join(", ")}`;
  if (keyword === "const") return `must be ${JSON.stringify(params.allowedValue)}`;
  if (keyword === "type") return `must be ${/^[aeiou]/.test(params.type) ? "an" : "a"} ${params.type}`.replace("a null", "null");
  return error.message.replace("must NOT have", "must not have");
}

/** Problems as the form library wants them: nested by path. */
export function errorTree(problems) {
  const tree = {};
  for (const { path, message } of problems) {
    let place = tree;
    for (const part of path) place = place[part] ??= {};
    (place.__errors ??= []).push(message);
  }
  return tree;
}

export const dotted = (path) =>
  path.reduce((text, part) => (typeof part === "number" ? `${text}[${part}]` : text ? `${text}.${part}` : part), "");
