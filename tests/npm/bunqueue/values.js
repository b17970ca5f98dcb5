// Values that JSON does not have, in payloads and results: what the server keeps of each, as HTTP shows it.
import { begin, bunqueue, call, connection, finish, record, until } from './calls.js';
const { Queue, Worker } = bunqueue;
const http = async (path) => (await fetch(`http://127.0.0.1:${process.env.TEST_HTTP_PORT}${path}`)).json();

const values = {
  date: new Date(Date.UTC(2026, 10, 18)),
  'date with ms': new Date(1_700_000_000_123),
  'date before 1970': new Date(-5),
  'date far away': new Date(8.64e15),
  'invalid date': new Date(Number.NaN),
  bytes: new Uint8Array([1, 2, 255]),
  buffer: Buffer.from('hi'),
  map: new Map([['a', 1]]),
  'map with numbers as keys': new Map([[1, 2]]),
  set: new Set([1, 2]),
  nan: Number.NaN,
  infinity: -Infinity,
  undefined: { a: undefined, b: [undefined] },
  regexp: /a/g,
  url: new URL('http://example.com/'),
  plain: { n: 1 },
};
const labels = Object.keys(values);

begin('values');
const queue = new Queue('values', { connection });
const added = await queue.addBulk(labels.map((label) => ({ name: 'keep', data: { label, value: values[label] } })));
for (const [index, job] of added.entries()) {
  await call(`payload ${labels[index]}`, async () => (await http(`/jobs/${job.id}`)).job.data.value);
}
const together = await Promise.all(labels.map((label) => queue.add('keep', { label, value: values[label] })));
record('added at the same time', new Set(together.map((job) => job.id)).size);
const worker = new Worker('values', async (job) => ({ value: values[job.data.label] }), { connection, concurrency: 10 });
await until('all are done', async () => (await queue.getJobCountsAsync()).completed, (done) => done === 2 * labels.length);
await worker.close();
for (const [index, job] of added.entries()) {
  await call(`result ${labels[index]}`, async () => (await http(`/jobs/${job.id}/result`)).result.value);
}
await finish();
