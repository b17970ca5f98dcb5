// Worker: what a processor sees and can do, and every public method.
import { BRIEFLY_MS, begin, bunqueue, call, connection, finish, isOld, record, until } from './calls.js';
const { Queue, Worker, UnrecoverableError } = bunqueue;

const open = (name) => new Queue(name, { connection });
const work = (name, processor, opts = {}) => {
  const worker = new Worker(name, processor, { connection, ...opts });
  worker.on('error', () => {});
  return worker;
};
const HOUR = 3_600_000;

begin('process:');
{
  const queue = open('w-process');
  const seen = [];
  await queue.add('double', { n: 4 }, { jobId: 'p-1', priority: 2, attempts: 4, tags: ['a'] });
  const worker = work('w-process', async (job) => {
    seen.push({ id: job.id, name: job.name, data: job.data, queueName: job.queueName, attemptsMade: job.attemptsMade, priority: job.priority, attempts: job.opts.attempts });
    await job.log('begun');
    await job.updateProgress(50);
    seen.push(await job.getState());
    return { doubled: job.data.n * 2 };
  });
  const events = [];
  for (const event of ['active', 'completed', 'failed', 'progress']) worker.on(event, (job, value) => events.push([event, job?.id, event === 'failed' ? value?.message : value]));
  await until('it is done', () => queue.getJobState('p-1'), (state) => state === 'completed');
  record('what the processor saw', seen);
  await call('getJob', () => queue.getJob('p-1'));
  await call('getJobLogs', () => queue.getJobLogs('p-1'));
  await until('the events', async () => events.map(([event]) => event).sort(), (list) => list.includes('completed'));
  await call('getWorkers', async () => (await queue.getWorkers()).map(({ queues, concurrency }) => ({ queues, concurrency })));
  await call('getWorkersCount', () => queue.getWorkersCount());
  await call('isRunning', () => worker.isRunning());
  await call('isPaused', () => worker.isPaused());
  await call('concurrency', () => worker.concurrency);
  worker.pause();
  await call('isPaused after pause', () => worker.isPaused());
  worker.resume();
  await call('isPaused after resume', () => worker.isPaused());
  await worker.close();
  await call('isClosed', () => worker.isClosed());
  await queue.close();
}

begin('results:');
{
  const queue = open('w-results');
  const values = { text: 'hello', number: 4.5, zero: 0, list: [1, null, 'x'], nothing: null, missing: undefined, no: false, deep: { a: { b: [] } } };
  const worker = work('w-results', async (job) => values[job.name]);
  for (const name of Object.keys(values)) await queue.add(name, {}, { jobId: `res-${name}` });
  await until('all are done', () => queue.getCompletedCount(), (count) => count === Object.keys(values).length);
  for (const name of Object.keys(values)) await call(`returnvalue: ${name}`, async () => (await queue.getJob(`res-${name}`)).returnvalue);
  await worker.close();
  await queue.close();
}

begin('failures:');
{
  const queue = open('w-failures');
  const tries = {};
  const worker = work('w-failures', async (job) => {
    tries[job.name] = (tries[job.name] ?? 0) + 1;
    if (job.name === 'hopeless') throw new UnrecoverableError('no use');
    if (job.name === 'second' && tries.second > 1) return 'at last';
    throw new Error(`boom ${job.name} ${job.attemptsMade}`);
  });
  const failed = [];
  worker.on('failed', (job, error) => failed.push([job.name, error.message]));
  await queue.add('second', {}, { jobId: 'f-second', attempts: 3, backoff: 10 });
  await queue.add('never', {}, { jobId: 'f-never', attempts: 2, backoff: { type: 'fixed', delay: 10 } });
  await queue.add('hopeless', {}, { jobId: 'f-hopeless', attempts: 2, backoff: 10 });
  await until('the counts', () => queue.getJobCountsAsync(), (each) => each.failed === 2 && each.completed === 1);
  record('how often each ran', tries);
  await until('the events', async () => failed.sort(), (list) => list.length >= 4);
  for (const id of ['f-second', 'f-never', 'f-hopeless'])
    await call(`getJob ${id}`, async () => { const job = await queue.getJob(id); return [job.attemptsMade, job.failedReason, job.returnvalue, Array.isArray(job.stacktrace), job.stacktrace?.[0]]; });
  await worker.close();
  await queue.close();
}

begin('removal:');
{
  const queue = open('w-removal');
  const patience = isOld ? BRIEFLY_MS : undefined; // the old client does not pass these options on
  const keeps = work('w-removal', async (job) => { if (job.data.fail) throw new Error('x'); return 1; }, { removeOnComplete: true, removeOnFail: true });
  let ended = 0;
  for (const event of ['completed', 'failed']) keeps.on(event, () => ended++);
  await queue.add('ok', {}, { jobId: 'r-ok' });
  await queue.add('bad', { fail: true }, { jobId: 'r-bad', attempts: 1 });
  await until('both have ended', async () => ended, (count) => count === 2);
  await until('neither is kept', () => queue.getJobCountsAsync(), (each) => each.active + each.waiting + each.completed + each.failed === 0, patience);
  await call('state of the one', () => queue.getJobState('r-ok'));
  await call('state of the other', () => queue.getJobState('r-bad'));
  await keeps.close();
  const own = work('w-removal', async () => 1);
  await queue.add('own', {}, { jobId: 'r-own', removeOnComplete: true });
  await until('its own option', () => queue.getJobState('r-own'), (state) => state === 'unknown', patience);
  await own.close();
  await queue.close();
}

begin('concurrency:');
{
  const queue = open('w-concurrency');
  let running = 0;
  let most = 0;
  let open_;
  const gate = new Promise((done) => { open_ = done; });
  const worker = work('w-concurrency', async () => { running++; most = Math.max(most, running); await gate; running--; }, { concurrency: 3 });
  await queue.addBulk([1, 2, 3, 4, 5].map((n) => ({ name: 'c', data: { n }, opts: { jobId: `con-${n}` } })));
  await until('three run', async () => running, (count) => count === 3);
  await until('and are active', () => queue.getActiveCount(), (count) => count >= 3);
  open_();
  await until('all are done', () => queue.getCompletedCount(), (count) => count === 5);
  record('the most at once', most);
  worker.concurrency = 7;
  await call('concurrency', () => worker.concurrency);
  await worker.close();
  await queue.close();
}

begin('by hand:');
{
  const queue = open('w-hand');
  const worker = work('w-hand', async (job) => ({ by: job.name }), { autorun: false });
  await call('getNextJob of nothing', async () => (await worker.getNextJob('t')) ?? null);
  await queue.add('one', { n: 1 }, { jobId: 'h-1' });
  await queue.add('two', { n: 2 }, { jobId: 'h-2' });
  const job = await worker.getNextJob('t');
  record('getNextJob', [job.id, job.name, job.data]);
  if (!isOld) {
    await call('extendJobLocks', () => worker.extendJobLocks([String(job.id)], [job.token], 60_000));
    await call('extendJobLocks with a wrong token', () => worker.extendJobLocks([String(job.id)], ['wrong'], 60_000));
    await call('processJobManually', async () => (await worker.processJobManually(job, job.token)) ?? null);
    await until('it is done', () => queue.getJobState('h-1'), (state) => state === 'completed');
    await call('its result', async () => (await queue.getJob('h-1')).returnvalue);
  }
  await call('getRateLimiterInfo', () => worker.getRateLimiterInfo());
  await call('isRateLimited', () => worker.isRateLimited());
  await call('waitUntilReady', () => worker.waitUntilReady());
  await call('startStalledCheckTimer', () => worker.startStalledCheckTimer());
  await call('delay', () => worker.delay(1));
  await call('cancelJob', () => worker.cancelJob('nobody'));
  await call('isJobCancelled', () => worker.isJobCancelled('nobody'));
  await worker.close();
  await queue.close();
}

begin('inside:');
{
  const queue = open('w-inside');
  const seen = {};
  const note = async (label, fn) => { try { seen[label] = (await fn()) ?? null; } catch (error) { seen[label] = `throws ${error.message}`; } };
  const worker = work('w-inside', async (job) => {
    await note('updateData', () => job.updateData({ changed: true }));
    await note('extendLock', async () => (await job.extendLock(job.token ?? '', 60_000)) > 0);
    await note('isActive', () => job.isActive());
    await note('getChildrenValues', () => job.getChildrenValues());
    await note('getDependencies', () => job.getDependencies());
    await note('clearLogs', () => job.clearLogs());
    await note('changePriority', () => job.changePriority({ priority: 5 }));
    await note('promote', () => job.promote());
    return 'ok';
  });
  await queue.add('x', {}, { jobId: 'i-1' });
  await until('it is done', () => queue.getJobState('i-1'), (state) => state === 'completed');
  record('the calls', seen);
  await call('the data after that', async () => (await queue.getJob('i-1')).data);
  await worker.close();
  await queue.close();
}

begin('crons:');
{
  const queue = open('w-crons');
  const seen = [];
  const worker = work('w-crons', async (job) => { seen.push([job.name, job.data]); });
  await queue.upsertJobScheduler('w-cron', { every: HOUR, immediately: true }, { name: 'tick', data: { n: 7 } });
  await until('its job runs under its name', async () => seen, (list) => list.length > 0);
  await queue.removeJobScheduler('w-cron');
  await worker.close();
  await queue.close();
}

begin('limiter:');
{
  const queue = open('w-limiter');
  const worker = work('w-limiter', async () => 1, { limiter: { max: 2, duration: HOUR } });
  await queue.addBulk([1, 2, 3].map((n) => ({ name: 'l', data: { n } })));
  await until('two pass', () => queue.getCompletedCount(), (count) => count === 2);
  await call('the third waits', () => queue.getCompletedCount());
  await worker.close();
  await queue.close();
}
await finish();
