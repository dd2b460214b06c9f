// How the form shows what our schemas have and form libraries find hard: open unions and lists.

import { useEffect, useState } from "react";
import { parseDocument } from "yaml";
import { chosen, equal, fill, isObject, listed, options, range, resolve } from "./schema.js";
import { flow } from "./texts.js";

const idOf = (props) => props.fieldPathId.$id;

function Help({ id, text, schema }) {
  const allowed = schema ? range(schema) : "";
  if (!text && !allowed) return null;
  return (
    <div id={`${id}__description`} className="help">
      {text && <Prose text={text} />} {allowed && <code className="range">{allowed.replaceAll("<=", "≤")}</code>}
    </div>
  );
}

/** Text in which `backticks` mark code; the last sentence, the source of a default, is quieter. */
function Prose({ text }) {
  const [, body, source] = /^(.*?)((?:^|\s)Default: .*)?$/s.exec(text);
  const spans = body.split(/`+([^`]+)`+/).map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part));
  return (
    <>
      {spans}
      {source && <span className="source">{source}</span>}
    </>
  );
}

function Errors({ id, errors }) {
  if (!errors?.length) return null;
  return (
    <ul id={`${id}__error`} className="errors">
      {errors.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}

// --- templates -----------------------------------------------------------------------------------

export function FieldTemplate({ id, label, children, hidden, displayLabel, rawDescription, rawErrors, schema }) {
  if (hidden) return <div hidden>{children}</div>;
  const isUnion = Boolean(schema.oneOf);
  const isChecked = schema.type === "boolean";
  if (!displayLabel && !isChecked) return <div className="bare">{children}</div>;
  const hasOwnErrors = isUnion || schema.type === "array";
  return (
    <div className={`field${rawErrors?.length ? " wrong" : ""}`}>
      {isChecked ? (
        <label className="check">
          {children} <span>{label}</span>
        </label>
      ) : (
        <label htmlFor={isUnion ? `${id}__select` : id}>{label}</label>
      )}
      <Help id={id} text={rawDescription} schema={schema} />
      {!isChecked && children}
      {!hasOwnErrors && <Errors id={id} errors={rawErrors} />}
    </div>
  );
}

export function CheckboxWidget({ id, value, onChange, rawErrors }) {
  return (
    <input
      type="checkbox"
      id={id}
      checked={value === true}
      aria-invalid={Boolean(rawErrors?.length)}
      aria-describedby={`${id}__description`}
      onChange={(event) => onChange(event.target.checked)}
    />
  );
}

export function ObjectFieldTemplate({ title, properties, fieldPathId, registry, schema, uiSchema, onAddProperty }) {
  const id = fieldPathId.$id;
  if (schema.oneOf) return null; // the union's own field shows it
  const byName = new Map(properties.map((item) => [item.name, item.content]));
  if (id === "root") return <Run byName={byName} />;
  if (id === "root_learnable") return <Groups byName={byName} groups={registry.formContext.groups} />;
  const isAlone = uiSchema?.["ui:label"] === false;
  if (isAlone && !properties.length && !schema.additionalProperties) return null;
  return (
    <fieldset id={id} className="part">
      {!isAlone && <legend>{title}</legend>}
      {properties.map((item) => (
        <div key={item.name}>{item.content}</div>
      ))}
      {schema.additionalProperties && (
        <button type="button" onClick={onAddProperty}>
          Add an entry
        </button>
      )}
    </fieldset>
  );
}

function Run({ byName }) {
  const rest = [...byName].filter(([name]) => name !== "learnable");
  return (
    <>
      {byName.get("learnable")}
      <details className="group">
        <summary>Run settings</summary>
        {rest.map(([name, content]) => (
          <div key={name}>{content}</div>
        ))}
      </details>
    </>
  );
}

function Groups({ byName, groups }) {
  return groups
    .map(({ title, fields }) => ({ title, fields: fields.filter((name) => byName.has(name)) }))
    .filter(({ fields }) => fields.length)
    .map(({ title, fields }) => (
      <details key={title} className="group" open>
        <summary>{title}</summary>
        {fields.map((name) => (
          <div key={name}>{byName.get(name)}</div>
        ))}
      </details>
    ));
}

// --- unions --------------------------------------------------------------------------------------

/** Where a value may be of several forms: a list to choose from, and below it the chosen form. */
export function UnionField(props) {
  const { schema, formData, registry, onChange, fieldPathId, errorSchema } = props;
  const { trueSchema } = registry.formContext;
  const id = idOf(props);
  const alternatives = listed(schema);
  const index = chosen(formData, alternatives, trueSchema);
  const [isOpen, setOpen] = useState(false);
  const choose = (event) => {
    setOpen(true);
    onChange(initial(alternatives[Number(event.target.value)], trueSchema), fieldPathId.path);
  };
  const option = alternatives[index];
  const isNull = !option || option.schema.type === "null";
  const own = errorSchema?.__errors ?? [];
  const tagErrors = errorSchema?.type?.__errors ?? [];
  const hasInnerErrors = Object.keys(errorSchema ?? {}).some((key) => key !== "__errors");
  return (
    <div className="union">
      <select
        id={`${id}__select`}
        value={index}
        aria-invalid={own.length + tagErrors.length > 0}
        aria-describedby={`${id}__description`}
        onChange={choose}
      >
        {index < 0 && <option value={-1}>{isObject(formData) ? String(formData.type) : "choose"}</option>}
        {alternatives.map((item, number) => (
          <option key={item.label + number} value={number}>
            {item.label}
          </option>
        ))}
      </select>
      {(isNull || isObject(formData)) && <Errors id={id} errors={[...own, ...tagErrors]} />}
      {!isNull && isObject(formData) && hasSettings(option, trueSchema) && (
        <details className="sub" open={isOpen || hasInnerErrors} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary>Settings of {option.label}</summary>
          <Inner {...props} option={option} uiSchema={{ "ui:label": false }} />
        </details>
      )}
      {!isNull && !isObject(formData) && <Inner {...props} option={option} title="value" />}
    </div>
  );
}

/** The chosen form; it takes the place of the union and says nothing twice. */
function Inner({ option, title, uiSchema, ...props }) {
  const { SchemaField } = props.registry.fields;
  const { $ref, ...own } = option.schema;
  const schema = $ref ? { $ref, title, description: "" } : { ...own, title, description: "" };
  return <SchemaField key={option.label} {...props} schema={schema} uiSchema={uiSchema ?? {}} required />;
}

function hasSettings(option, trueSchema) {
  const found = resolve(option.schema, trueSchema);
  return Object.keys(found.properties ?? {}).some((name) => name !== "type") || found.additionalProperties === true;
}

/** What a newly chosen form starts with: the defaults of its member, or something of its type. */
function initial(option, trueSchema) {
  if (option.tag) return fill({ type: option.tag }, option.schema, trueSchema);
  const node = resolve(option.schema, trueSchema);
  if (node.type === "null") return null;
  if (node.type === "string") return "";
  if (node.type === "array") return [];
  if (node.type === "object") return fill({}, node, trueSchema);
  const low = node.minimum ?? node.exclusiveMinimum ?? 0;
  const high = node.maximum ?? node.exclusiveMaximum ?? low + 1;
  // Inside the range, and a number that a person would start from.
  return low < 1 && high > 1 ? 1 : node.type === "integer" ? low : (low + Math.min(high, low + 1)) / 2;
}

// --- lists ---------------------------------------------------------------------------------------

/** A list of plain values is one line, written as in YAML; a list of components has a form each. */
export function makeListField(ArrayField) {
  return function ListField(props) {
    const { trueSchema } = props.registry.formContext;
    const items = props.schema.items;
    const isPlain = !(isObject(items) && (items.$ref || items.oneOf || options(items, trueSchema).length || items.properties));
    return isPlain ? <LineField {...props} /> : <ListOfForms {...props} ArrayField={ArrayField} />;
  };
}

function ListOfForms({ ArrayField, ...props }) {
  return (
    <div className="field">
      <p className="label" id={`${idOf(props)}__title`}>{props.name}</p>
      <Help id={idOf(props)} text={props.schema.description} />
      <ArrayField {...props} schema={{ ...props.schema, title: undefined, description: undefined }} uiSchema={{ "ui:title": "", "ui:description": "" }} />
      <Errors id={idOf(props)} errors={props.errorSchema?.__errors} />
    </div>
  );
}

function LineField(props) {
  const { schema, formData, onChange, fieldPathId, errorSchema, name, uiSchema } = props;
  const id = idOf(props);
  const [text, setText] = useState(() => flow(formData ?? null));
  // The line is the user's while it means the value; a value from elsewhere replaces it.
  useEffect(() => {
    if (!equal(meaning(text), formData)) setText(flow(formData ?? null));
  }, [formData]);
  const errors = flat(errorSchema);
  const edit = (event) => {
    setText(event.target.value);
    onChange(meaning(event.target.value), fieldPathId.path);
  };
  return (
    <div className={`field${errors.length ? " wrong" : ""}`}>
      {uiSchema?.["ui:label"] !== false && <label htmlFor={id}>{schema.title ?? name}</label>}
      {uiSchema?.["ui:label"] !== false && <Help id={id} text={schema.description} />}
      <input
        id={id}
        type="text"
        spellCheck={false}
        value={text}
        aria-label={uiSchema?.["ui:label"] === false ? name : undefined}
        aria-invalid={errors.length > 0}
        aria-describedby={`${id}__description ${id}__error`}
        onChange={edit}
      />
      <Errors id={id} errors={errors} />
    </div>
  );
}

function meaning(text) {
  const document = parseDocument(text, { version: "1.2" });
  return document.errors.length ? text : document.toJS();
}

function flat(tree, path = "") {
  if (!tree) return [];
  const own = (tree.__errors ?? []).map((text) => (path ? `item ${path}: ${text}` : text));
  const below = Object.entries(tree).filter(([key]) => key !== "__errors");
  return [...own, ...below.flatMap(([key, part]) => flat(part, path ? `${path}, ${Number(key) + 1}` : String(Number(key) + 1)))];
}

// --- buttons -------------------------------------------------------------------------------------

function button(text) {
  return function Button({ onClick, disabled, id }) {
    return (
      <button type="button" id={id} onClick={onClick} disabled={disabled}>
        {text}
      </button>
    );
  };
}

export const ButtonTemplates = {
  AddButton: button("Add"),
  RemoveButton: button("Remove"),
  MoveUpButton: button("Up"),
  MoveDownButton: button("Down"),
  CopyButton: button("Copy"),
  ClearButton: button("Clear"),
};
