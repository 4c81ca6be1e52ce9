// build.mjs — bundles the console: `node build.mjs OUTDIR` writes index.html, icon.svg, app.js, app.css and editor.js there, each also as .gz.
// Verbs, reason codes and gate metrics come from the C tables, so that this console cannot disagree with the daemon.
import * as esbuild from 'esbuild';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2];
if (!out) {
  console.error('usage: node build.mjs OUTDIR');
  process.exit(2);
}
const LIMIT_BYTES = 350 * 1024;

// One row of an X-macro table: names, "strings" and 'c' characters, separated by commas.
function cells(row) {
  return [...row.matchAll(/"((?:[^"\\]|\\.)*)"|'(.)'|([\w*.]+)/g)].map((m) => m[1] ?? m[2] ?? m[3]);
}

async function rows(file, macro) {
  const text = await readFile(join(here, '..', file), 'utf8');
  const found = [...text.matchAll(new RegExp(`^${macro}\\((.*)\\)\\s*$`, 'gm'))].map((m) => cells(m[1]));
  if (found.length === 0) throw new Error(`${file} holds no ${macro} row`);
  return found;
}

const tables = {
  name: 'tables',
  setup(build) {
    build.onResolve({ filter: /^tables:c$/ }, () => ({ path: 'c', namespace: 'tables' }));
    build.onLoad({ filter: /.*/, namespace: 'tables' }, async () => {
      const verbs = (await rows('controller/verbs.def', 'KV_VERB')).map(
        ([verb, group, method, route, right, danger, stages, key, help]) => ({
          verb,
          group,
          method,
          route,
          right,
          danger,
          stages,
          key: key === '0' ? '' : key,
          help,
        }),
      );
      const reasons = (await rows('runtime/status.def', 'KV_STATUS')).map(([code, kind, http, meaning]) => ({
        code,
        kind,
        http: Number(http),
        meaning,
      }));
      const metrics = (await rows('controller/metrics.def', 'KV_METRIC')).map(
        ([name, unit, comparison, logic, stages, contracts, threshold, lowest, highest, minN, per, help]) => ({
          name,
          unit,
          comparison,
          logic,
          stages,
          contracts,
          threshold: Number(threshold),
          lowest: Number(lowest),
          highest: Number(highest),
          min_n: Number(minN),
          per,
          help,
        }),
      );
      for (const [name, title] of await rows('controller/drills.def', 'KV_DRILL'))
        metrics.push({
          name: `drill_${name}`,
          unit: 's',
          comparison: '<=',
          logic: 'DRILL',
          stages: 'SCRF',
          contracts: 'EA',
          threshold: 86400,
          lowest: 60,
          highest: 2592000,
          min_n: 1,
          per: 'check',
          help: `age of the last passed drill; ${title}`,
        });
      return {
        contents: `export const verbs=${JSON.stringify(verbs)};export const reasons=${JSON.stringify(reasons)};export const metrics=${JSON.stringify(metrics)};`,
        loader: 'js',
      };
    });
  },
};

await mkdir(out, { recursive: true });
await esbuild.build({
  entryPoints: { app: join(here, 'src/main.js'), editor: join(here, 'src/editor.js') },
  external: ['./editor.js'],
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  legalComments: 'none',
  outdir: out,
  plugins: [tables],
  logLevel: 'warning',
});
for (const name of ['index.html', 'icon.svg']) await copyFile(join(here, 'src', name), join(out, name));

let total = 0;
for (const name of ['index.html', 'icon.svg', 'app.js', 'app.css', 'editor.js']) {
  const packed = gzipSync(await readFile(join(out, name)), { level: 9 });
  await writeFile(join(out, `${name}.gz`), packed);
  total += packed.length;
}
if (total > LIMIT_BYTES) throw new Error(`the console is ${total} bytes compressed; the limit is ${LIMIT_BYTES}`);
