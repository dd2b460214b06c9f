// The builder: a learnable and a preset, a form, and the same config as YAML, Python and command.

import Form from "@rjsf/core/lib/components/Form.js";
import getDefaultRegistry from "@rjsf/core/lib/getDefaultRegistry.js";
import { useMemo, useState } from "react";
import { dotted, errorTree, makeChecker } from "./check.js";
import { ButtonTemplates, CheckboxWidget, FieldTemplate, ObjectFieldTemplate, UnionField, makeListField } from "./fields.jsx";
import { fill, formSchema, isObject, runOf } from "./schema.js";
import { commandText, pythonText, readYaml, yamlText } from "./texts.js";

const FIELDS = { OneOfField: UnionField, ArrayField: makeListField(getDefaultRegistry().fields.ArrayField) };
const TEMPLATES = { FieldTemplate, ObjectFieldTemplate, ButtonTemplates };
const WIDGETS = { CheckboxWidget };
// The form shows the problems that it is given; it never has to decide between alternatives itself.
const NO_VALIDATION = {
  isValid: () => true,
  rawValidation: () => ({ errors: [] }),
  validateFormData: () => ({ errors: [], errorSchema: {} }),
};

export function App({ data }) {
  const { schema, learnables } = data;
  const check = useMemo(() => makeChecker(schema), [schema]);
  const named = (name) => learnables.find((item) => item.name === name);
  const first = named(decodeURIComponent(location.hash.slice(1))) ?? learnables[0];
  const [choice, setChoice] = useState({ learnable: first.name, preset: "" });
  const [run, setRun] = useState(() => runOf(first.name, {}, schema));
  const [lineOf, setLineOf] = useState(() => () => null);

  const learnable = named(choice.learnable);
  const preset = learnable.presets.find((item) => item.id === choice.preset);
  const form = useMemo(() => formSchema(schema, choice.learnable), [schema, choice.learnable]);
  const base = useMemo(() => runOf(choice.learnable, preset?.settings ?? {}, schema), [schema, choice]);
  const problems = useMemo(() => check(run), [check, run]);
  const context = useMemo(() => ({ groups: learnable.groups, trueSchema: schema }), [learnable, schema]);
  const errors = useMemo(() => errorTree(problems), [problems]);

  const pick = (name, id = "") => {
    const settings = named(name).presets.find((item) => item.id === id)?.settings ?? {};
    setChoice({ learnable: name, preset: id });
    setRun(runOf(name, settings, schema));
    setLineOf(() => () => null);
  };
  const edit = ({ formData }) => setRun((before) => fill({ ...formData, learnable: { type: before.learnable.type, ...formData.learnable } }, schema, schema));
  const paste = (pasted) => {
    const name = pasted.run.learnable?.type;
    if (!isObject(pasted.run.learnable) || !named(name)) return [`There is no learnable ${JSON.stringify(name ?? null)}; there is ${learnables.map((item) => item.name).join(", ")}.`];
    setChoice({ learnable: name, preset: "" });
    setRun(fill(pasted.run, schema, schema));
    setLineOf(() => pasted.lineOf);
    return [];
  };

  return (
    <div className="builder">
      <div className="form">
        <Choice learnables={learnables} learnable={learnable} preset={preset} pick={pick} />
        <Paste onPaste={paste} />
        <Form
          key={choice.learnable}
          tagName="div"
          schema={form}
          formData={run}
          formContext={context}
          extraErrors={errors}
          validator={NO_VALIDATION}
          noValidate
          showErrorList={false}
          fields={FIELDS}
          templates={TEMPLATES}
          widgets={WIDGETS}
          experimental_defaultFormStateBehavior={{ arrayMinItems: { populate: "never" }, emptyObjectFields: "skipDefaults" }}
          onChange={edit}
        >
          <></>
        </Form>
      </div>
      <div className="result">
        <Problems problems={problems} lineOf={lineOf} run={run} setRun={setRun} />
        <Results run={run} base={base} preset={choice.preset} schema={schema} isValid={!problems.length} />
      </div>
    </div>
  );
}

function Choice({ learnables, learnable, preset, pick }) {
  return (
    <section className="choice" aria-label="What to configure">
      <div className="pair">
        <div className="field">
          <label htmlFor="learnable">Learnable</label>
          <select id="learnable" value={learnable.name} onChange={(event) => pick(event.target.value)}>
            {learnables.map((item) => (
              <option key={item.name}>{item.name}</option>
            ))}
          </select>
        </div>
        <div className="field">
          <label htmlFor="preset">Preset</label>
          <select id="preset" value={preset?.id ?? ""} onChange={(event) => pick(learnable.name, event.target.value)}>
            <option value="">none (defaults)</option>
            {learnable.presets.map((item) => (
              <option key={item.id}>{item.id}</option>
            ))}
          </select>
        </div>
      </div>
      <p className="help">
        {preset ? `${preset.summary} Source: ${preset.source}.` : learnable.summary} <a href={learnable.page}>Its page</a>
        <span className="narrow">
          {" "}
          · <a href="#problems">To the result</a>
        </span>
      </p>
    </section>
  );
}

function Paste({ onPaste }) {
  const [text, setText] = useState("");
  const [errors, setErrors] = useState([]);
  const use = () => {
    const pasted = readYaml(text);
    setErrors(pasted.errors.length ? pasted.errors : onPaste(pasted));
  };
  return (
    <details className="group">
      <summary>Start from YAML</summary>
      <div className="field">
        <label htmlFor="paste">A run file, or the config of a learnable</label>
        <textarea id="paste" rows={8} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />
        <button type="button" id="fill" onClick={use}>
          Fill the form
        </button>
        <ul className="errors" id="paste-errors" aria-live="polite">
          {errors.map((item) => (
            <li key={item}>{item}</li>
          ))}
        </ul>
      </div>
    </details>
  );
}

function Problems({ problems, lineOf, run, setRun }) {
  const remove = ({ path, key }) => {
    const next = structuredClone(run);
    delete path.reduce((place, part) => place[part], next)[key];
    setRun(next);
  };
  const go = (event, { path }) => {
    event.preventDefault();
    const id = ["root", ...path].join("_");
    const target = document.getElementById(id) ?? document.getElementById(`${id}__select`);
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target?.scrollIntoView({ block: "center" });
    target?.focus();
  };
  return (
    <section id="problems" aria-live="polite" aria-label="Check" className={problems.length ? "bad" : "good"}>
      {problems.length ? (
        <>
          <p>{problems.length === 1 ? "One problem" : `${problems.length} problems`}</p>
          <ul>
            {problems.map((item) => (
              <li key={dotted(item.path) + item.message}>
                {lineOf(item.path) !== null && `line ${lineOf(item.path)}: `}
                <a href="#problems" onClick={(event) => go(event, item)}>
                  {dotted(item.path) || "the run"}
                </a>{" "}
                {item.message}{" "}
                {item.keyword === "additionalProperties" && (
                  <button type="button" onClick={() => remove(item)}>
                    Remove {item.key}
                  </button>
                )}
              </li>
            ))}
          </ul>
        </>
      ) : (
        <p>Valid</p>
      )}
    </section>
  );
}

// --- results -------------------------------------------------------------------------------------

function Results({ run, base, preset, schema, isValid }) {
  const [isFull, setFull] = useState(false);
  const faces = [
    ["yaml", "YAML", yamlText(run, schema, isFull)],
    ["python", "Python", pythonText(run, schema)],
    ["command", "Command line", commandText(run, base, preset, schema)],
  ];
  return (
    <>
      <label className="check">
        <input type="checkbox" id="full" checked={isFull} onChange={(event) => setFull(event.target.checked)} />
        <span>Write defaults into the YAML too</span>
      </label>
      {faces.map(([id, title, text]) => (
        <Result key={id} id={id} title={title} text={text} isValid={isValid} />
      ))}
      <p className="help">
        Save the YAML as <code>run.yaml</code>, then: <code>rlreg validate run.yaml</code>
      </p>
    </>
  );
}

function Result({ id, title, text, isValid }) {
  const [word, setWord] = useState("Copy");
  const copy = async () => {
    setWord((await toClipboard(text, id)) ? "Copied" : "Press Ctrl+C");
    setTimeout(() => setWord("Copy"), 2000);
  };
  return (
    <section className="text" aria-labelledby={`${id}-title`}>
      <div className="bar">
        <h2 id={`${id}-title`}>{title}</h2>
        <button type="button" id={`copy-${id}`} onClick={copy} disabled={!isValid} aria-label={`${word} ${title}`}>
          {word}
        </button>
      </div>
      <pre id={id} tabIndex={0}>
        <code>{text}</code>
      </pre>
    </section>
  );
}

async function toClipboard(text, id) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No permission, or no clipboard for this page: leave the text selected.
    getSelection().selectAllChildren(document.getElementById(id));
    return document.execCommand("copy");
  }
}
