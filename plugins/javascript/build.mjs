// Builds a job of tickhost from one JavaScript file:
//   node build.mjs SOURCE COMPONENT WIT
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [source, out, wit] = process.argv.slice(2);
if (!source || !out || !wit) {
  console.error('usage: node build.mjs SOURCE COMPONENT WIT');
  process.exit(2);
}
const { component } = await componentize({ sourcePath: source, witPath: wit, worldName: 'job' });
await writeFile(out, component);
console.log(`${out}: ${component.length} bytes`);
