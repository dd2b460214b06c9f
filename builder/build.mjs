// Bundles the builder into rlreg/reference/builder_dist/, with the licences of what is inside.

import { build } from "esbuild";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "rlreg", "reference", "builder_dist");

const result = await build({
  absWorkingDir: here,
  entryPoints: { builder: "src/main.jsx" },
  outdir: target,
  bundle: true,
  minify: true,
  // A classic script: browsers refuse modules on pages that are opened from a disk.
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  legalComments: "none",
  metafile: true,
});
await mkdir(target, { recursive: true });
await writeFile(join(target, "builder.css"), await readFile(join(here, "src", "builder.css")));
await writeFile(join(target, "LICENSES.txt"), await licences(Object.keys(result.metafile.inputs)));
for (const [name, { bytes }] of Object.entries(result.metafile.outputs)) console.log(`${name}: ${Math.round(bytes / 1024)} kB`);

/** The licence text of every package that the bundle took a file from. */
async function licences(inputs) {
  const names = new Set(inputs.map((file) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]).filter(Boolean));
  const parts = [];
  for (const name of [...names].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((entry) => /^licen[sc]e/i.test(entry));
    const text = file ? await readFile(join(folder, file), "utf8") : "(The package ships no licence text.)";
    parts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
  }
  return `The config builder contains these packages.\n\n${parts.join(`\n${"-".repeat(78)}\n\n`)}`;
}
