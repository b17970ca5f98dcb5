// Everything a QueueEvents listener can be told, one story per queue: which events come, in which order, with what.
import { begin, bunqueue, call, connection, finish, record, sleep, until } from './calls.js';
import { connectRaw } from './raw.js';
const { FlowProducer, Queue, QueueEvents, Worker } = bunqueue;

const KINDS = [
  'waiting', 'active', 'completed', 'failed', 'progress', 'stalled', 'removed', 'delayed', 'duplicated', 'retried',
  'waiting-children', 'drained', 'paused', 'resumed',
];
const raw = await connectRaw();

// Tells a story on a queue of its own and records the events, up to those of a last job which marks the end.
const story = async (name, tell) => {
  begin(`events ${name}:`);
  const queue = new Queue(`events-${name}`, { connection, autoBatch: { enabled: false } });
  const events = new QueueEvents(`events-${name}`, { connection });
  const seen = [];
  const errors = [];
  for (const kind of KINDS) events.on(kind, (told) => seen.push([kind, told]));
  events.on('error', (error) => errors.push(error.message));
  await events.waitUntilReady();
  const pull = async (fields = {}) => raw.send('PULL', { queue: queue.name, owner: 'me', ...fields });
  try {
    await tell({ queue, events, pull, seen });
  } catch (error) {
    record('the story breaks off', error);
  }
  const last = await raw.send('PUSH', { queue: queue.name, data: { last: true }, delay: 3_600_000 });
  const isLast = ([, told]) => told.jobId === last.id;
  await until('all events came', async () => seen.some(isLast));
  record('events', seen.slice(0, seen.findIndex(isLast)));
  record('errors', errors);
  events.close();
  await queue.close();
};

await story('add', async ({ queue }) => {
  await queue.add('a', { n: 1 });
  await queue.addBulk([{ name: 'b', data: {} }, { name: 'c', data: {} }]);
  await raw.send('PUSHB', { queue: queue.name, jobs: [{ data: 1 }, { data: 2 }] });
});
await story('complete', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 });
  const { job, token } = await pull();
  await raw.send('ACK', { id: job.id, token, result: { sum: 3 } });
});
await story('complete-batch', async ({ queue }) => {
  await queue.addBulk([{ name: 'b', data: {} }, { name: 'c', data: {} }]);
  const { jobs, tokens } = await raw.send('PULLB', { queue: queue.name, count: 2, owner: 'me' });
  await raw.send('ACKB', { ids: jobs.map((job) => job.id), tokens, results: [1, null] });
});
await story('fail', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 }, { attempts: 1 });
  const { job, token } = await pull();
  await raw.send('FAIL', { id: job.id, token, error: 'no luck' });
});
await story('retry', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 }, { attempts: 2, backoff: 1 });
  let { job, token } = await pull();
  await raw.send('FAIL', { id: job.id, token, error: 'no luck' });
  ({ job, token } = await pull({ timeout: 10_000 }));
  await raw.send('ACK', { id: job.id, token, result: 1 });
});
await story('progress', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 });
  const { job, token } = await pull();
  await raw.send('Progress', { id: job.id, token, progress: 40, message: 'half' });
  await raw.send('ACK', { id: job.id, token });
});
await story('delay', async ({ queue }) => {
  const job = await queue.add('a', { n: 1 }, { delay: 60_000 });
  await raw.send('ChangeDelay', { id: job.id, delay: 70_000 });
  await raw.send('Promote', { id: job.id });
});
await story('due', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 }, { delay: 30 });
  await pull({ timeout: 10_000 });
});
await story('move-to-delayed', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 });
  const { job, token } = await pull();
  await raw.send('MoveToDelayed', { id: job.id, token, delay: 60_000 });
});
await story('move-to-wait', async ({ queue }) => {
  const job = await queue.add('a', { n: 1 }, { delay: 60_000 });
  await raw.send('MoveToWait', { id: job.id });
});
await story('remove', async ({ queue }) => {
  const job = await queue.add('a', { n: 1 });
  await queue.removeAsync(job.id);
});
await story('change', async ({ queue }) => {
  const job = await queue.add('a', { n: 1 });
  await raw.send('ChangePriority', { id: job.id, priority: 5 });
  await raw.send('Update', { id: job.id, data: { n: 2 } });
});
await story('discard', async ({ queue }) => {
  const job = await queue.add('a', { n: 1 });
  await raw.send('Discard', { id: job.id });
});
await story('duplicate', async ({ queue }) => {
  await queue.add('a', { n: 1 }, { jobId: 'one' });
  await queue.add('a', { n: 2 }, { jobId: 'one' });
  await queue.add('a', { n: 1 }, { deduplication: { id: 'two' } });
  await queue.add('a', { n: 2 }, { deduplication: { id: 'two' } });
});
await story('pause', async ({ queue }) => {
  await queue.pauseAsync();
  await queue.resumeAsync();
});
await story('drain', async ({ queue }) => {
  await queue.addBulk([{ name: 'b', data: {} }, { name: 'c', data: {} }]);
  await queue.drainAsync();
});
await story('clean', async ({ queue, pull }) => {
  await queue.add('b', {});
  const { job, token } = await pull();
  await raw.send('ACK', { id: job.id, token });
  await raw.send('Clean', { queue: queue.name, grace: 0, state: 'completed', limit: 10 });
});
await story('dead-letters', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 }, { attempts: 1 });
  let { job, token } = await pull();
  await raw.send('FAIL', { id: job.id, token, error: 'no luck' });
  await raw.send('RetryDlq', { queue: queue.name, jobId: job.id });
  ({ job, token } = await pull({ timeout: 10_000 }));
  await raw.send('FAIL', { id: job.id, token, error: 'again' });
  await raw.send('PurgeDlq', { queue: queue.name });
});
await story('retry-completed', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 });
  const { job, token } = await pull();
  await raw.send('ACK', { id: job.id, token });
  await raw.send('RetryCompleted', { queue: queue.name, id: job.id });
});
await story('remove-on-complete', async ({ queue, pull }) => {
  await queue.add('a', { n: 1 }, { removeOnComplete: true });
  const { job, token } = await pull();
  await raw.send('ACK', { id: job.id, token, result: 'gone' });
});
await story('flow', async ({ queue, pull }) => {
  const flow = new FlowProducer({ connection });
  await flow.add({ name: 'parent', queueName: queue.name, data: { p: 1 }, children: [{ name: 'child', queueName: queue.name, data: { c: 1 } }] });
  const { job, token } = await pull();
  await raw.send('ACK', { id: job.id, token, result: 7 });
  await pull({ timeout: 10_000 });
  await flow.close();
});
await story('stall', async ({ queue, pull, seen }) => {
  await raw.send('SetStallConfig', { queue: queue.name, config: { enabled: true, stallInterval: 1000, maxStalls: 3, gracePeriod: 0 } });
  await queue.add('a', { n: 1 }, { stallTimeout: 1000 });
  await raw.send('PULL', { queue: queue.name });
  const end = Date.now() + 40_000;
  while (Date.now() < end && !seen.some(([kind]) => kind === 'stalled')) await sleep(50);
});
await story('obliterate', async ({ queue }) => {
  await queue.add('a', { n: 1 });
  await raw.send('Obliterate', { queue: queue.name });
});

begin('worker:');
const queue = new Queue('events-worker', { connection });
const heard = [];
const worker = new Worker('events-worker', async (job) => {
  await job.updateProgress(50);
  if (job.data.n === 2) throw new Error('two');
  return job.data.n * 10;
}, { connection, concurrency: 1 });
for (const kind of ['active', 'completed', 'failed', 'progress', 'drained', 'stalled', 'ready', 'closing', 'closed']) {
  worker.on(kind, (job, value) => heard.push([kind, typeof job === 'object' && job ? { name: job.name, n: job.data?.n } : job, value]));
}
await queue.addBulk([1, 2, 3].map((n) => ({ name: `job ${n}`, data: { n }, opts: { attempts: 1 } })));
await until('done', () => queue.getJobCountsAsync(), (counts) => counts.completed === 2 && counts.failed === 1);
await worker.close();
record('heard', heard.filter(([kind]) => kind !== 'drained'));

begin('QueueEvents:');
const events = new QueueEvents('events-other', { connection });
await call('waitUntilReady', () => events.waitUntilReady());
await call('waitUntilReady again', () => events.waitUntilReady());
const others = new Queue('events-others', { connection });
let leaked = 0;
events.on('waiting', () => leaked++);
await others.add('x', {});
const mine = new Queue('events-other', { connection });
await mine.add('y', {});
await until('only its own queue', async () => leaked);
await call('disconnect', () => events.disconnect());
await call('waitUntilReady after close', () => events.waitUntilReady());
const bad = new QueueEvents('bad name!', { connection });
bad.on('error', (error) => record('a bad name', error.message));
await call('waitUntilReady of a bad name', () => bad.waitUntilReady());
bad.close();
await call('SubscribeEvents', () => raw.send('SubscribeEvents', { queue: 'events-raw' }));
await raw.send('PUSH', { queue: 'events-raw', data: 1 });
await until('an event between replies', async () => raw.others.length);
record('its frame', raw.others);
await call('SubscribeEvents without a queue', () => raw.send('SubscribeEvents'));
await call('UnsubscribeEvents', () => raw.send('UnsubscribeEvents'));
await finish();
