// Every public method of Queue, and what a job that was looked up can do.
import { EventEmitter } from 'node:events';
import { begin, bunqueue, call, connection, finish, record, until } from './calls.js';
const { Queue, Worker } = bunqueue;

const open = (name, opts = {}) => new Queue(name, { connection, ...opts });
const has = (thing, method) => typeof thing?.[method] === 'function';
// A method that only one of the two versions has is left out of the other's comparison.
const ask = (queue, method, ...args) => (has(queue, method) ? call(method, () => queue[method](...args)) : undefined);
const again = (label, queue, method, ...args) =>
  has(queue, method) ? call(`${method} ${label}`, () => queue[method](...args)) : undefined;
const HOUR = 3_600_000;

// Takes one job by hand, as a worker would.
const hand = (name) => new Worker(name, async () => null, { connection, autorun: false, heartbeatInterval: 0, useLocks: true });

// bunqueue's server writes a little later than it answers, and 2.7 lists and counts what was written.
const written = (queue, count) =>
  until('what was pushed is written', async () => (await queue.getJobsAsync({ start: 0, end: -1 })).length, (listed) => listed === count);
const take = (worker) => worker.getNextJob('t');
const fail = (queue, job, error) => queue.moveJobToFailed(job.id, error, job.token);
const complete = (queue, job, value) => queue.moveJobToCompleted(job.id, value, job.token);

begin('add:');
{
  const queue = open('c-add');
  await ask(queue, 'waitUntilReady');
  const plain = await call('plain', () => queue.add('welcome', { to: 'ann', n: 1 }));
  await again('of it', queue, 'getJob', plain.id);
  const full = await call('with every option', () =>
    queue.add('report', { page: [1, 2, { deep: true }], text: 'žluť' }, {
      priority: 7, delay: HOUR, attempts: 5, backoff: 250, timeout: 60_000, jobId: 'report-1', tags: ['a', 'b'],
      removeOnComplete: true, removeOnFail: true, stallTimeout: 45_000, lifo: true, keepLogs: 5, sizeLimit: 10_000, stackTraceLimit: 3,
      durable: true, ttl: 2 * HOUR,
    }));
  await again('with every option', queue, 'getJob', full.id);
  await call('with a backoff of its own', () => queue.add('b', {}, { jobId: 'b-1', backoff: { type: 'fixed', delay: 10 } }));
  await again('with a backoff of its own', queue, 'getJob', 'b-1');
  await call('deduplicated', () => queue.add('d', { first: true }, { jobId: 'd-1', deduplication: { id: 'key-1', ttl: HOUR } }));
  await call('deduplicated again', () => queue.add('d', { first: false }, { deduplication: { id: 'key-1', ttl: HOUR } }));
  await again('deduplicated', queue, 'getJob', 'd-1');
  await call('the same jobId again', () => queue.add('welcome', { other: true }, { jobId: 'report-1' }));
  const tick = await call('repeating', () => queue.add('tick', {}, { repeat: { every: HOUR, limit: 3 } }));
  await again('repeating', queue, 'getJob', tick.id);
  await call('data that has a name of its own', () => queue.add('named', { name: 'inner', x: 1 }, { jobId: 'n-1' }));
  await again('data that has a name of its own', queue, 'getJob', 'n-1');
  for (const [label, data] of [['text', 'hello'], ['number', 42], ['null', null], ['array', [1, 2]], ['true', true]]) {
    await call(`data: ${label}`, () => queue.add('x', data, { jobId: `data-${label}` }));
    await again(`data: ${label}`, queue, 'getJob', `data-${label}`);
  }
  await ask(queue, 'addBulk', [
    { name: 'one', data: { n: 1 } },
    { name: 'two', data: { n: 2 }, opts: { jobId: 'bulk-2', priority: 3, attempts: 1 } },
    { name: 'three', data: { n: 3 }, opts: { jobId: 'bulk-3', delay: HOUR } },
  ]);
  await again('empty', queue, 'addBulk', []);
  await again('of a bulk', queue, 'getJob', 'bulk-2');
  await again('unknown', queue, 'getJob', 'nobody');
  await again('unknown', queue, 'getJobState', 'nobody');
  const defaults = open('c-defaults', { defaultJobOptions: { attempts: 9, priority: 2, removeOnComplete: true } });
  await call('with defaults', () => defaults.add('x', {}, { jobId: 'def-1', priority: 1 }));
  await again('with defaults', defaults, 'getJob', 'def-1');
  await defaults.close();
  const prefixed = open('c-prefixed', { prefixKey: 'tenant:' });
  await call('with a prefix', () => prefixed.add('x', {}, { jobId: 'pre-1' }));
  await again('with a prefix', prefixed, 'getJobCountsAsync');
  await prefixed.close();
  const direct = open('c-direct', { autoBatch: { enabled: false } });
  await call('without batching', () => direct.add('x', { n: 1 }, { jobId: 'direct-1', priority: 4 }));
  await again('without batching', direct, 'getJob', 'direct-1');
  await direct.disconnect();
  await queue.close();
}

begin('refused:');
{
  const queue = open('c-refused');
  await call('a bad priority', () => queue.add('x', {}, { priority: 1.5 }));
  await call('a negative delay', () => queue.add('x', {}, { delay: -1 }));
  await call('too many attempts', () => queue.add('x', {}, { attempts: 100_000 }));
  await call('an empty name', () => queue.add('', {}));
  await call('a long name', () => queue.add('x'.repeat(300), {}));
  await call('in a bulk', () => queue.addBulk([{ name: 'ok', data: 1 }, { name: 'bad', data: 2, opts: { delay: -1 } }]));
  await ask(queue, 'getJobCountsAsync');
  const bad = open('no such/queue');
  await call('a bad name of a queue', () => bad.add('x', {}));
  await bad.close();
  await queue.close();
}

begin('counts:');
{
  const queue = open('c-counts');
  const worker = hand('c-counts');
  await queue.addBulk([
    { name: 'done', data: { n: 1 }, opts: { jobId: 'c1-done' } },
    { name: 'dead', data: { n: 2 }, opts: { jobId: 'c2-dead', attempts: 1 } },
    { name: 'held', data: { n: 3 }, opts: { jobId: 'c3-held' } },
    { name: 'ready', data: { n: 4 }, opts: { jobId: 'c4-ready' } },
    { name: 'ready', data: { n: 5 }, opts: { jobId: 'c5-ready' } },
    { name: 'later', data: { n: 6 }, opts: { jobId: 'c6-later', delay: HOUR } },
  ]);
  await written(queue, 6);
  const first = await take(worker);
  record('getNextJob', [first.id, first.name, first.data]);
  await call('moveJobToCompleted', () => queue.moveJobToCompleted(first.id, { sum: 3 }, first.token));
  const second = await take(worker);
  await call('moveJobToFailed', () => queue.moveJobToFailed(second.id, new Error('no good'), second.token));
  await call('getNextJob, the third', () => worker.getNextJob('t').then((job) => job.id));
  await until('the counts', () => queue.getJobCountsAsync(), (each) => each.active === 1);
  for (const method of ['getWaitingCount', 'getActiveCount', 'getCompletedCount', 'getFailedCount', 'getDelayedCount', 'countAsync', 'count',
    'getJobCounts', 'getCountsPerPriority', 'getCountsPerPriorityAsync', 'getWaitingChildrenCount', 'getPrioritizedCount']) await ask(queue, method);
  for (const id of ['c1-done', 'c2-dead', 'c3-held', 'c4-ready', 'c6-later']) {
    await again(id, queue, 'getJobState', id);
    const job = await again(id, queue, 'getJob', id);
    for (const check of ['isWaiting', 'isActive', 'isDelayed', 'isCompleted', 'isFailed', 'isWaitingChildren', 'getState'])
      if (has(job, check)) await call(`${check} of ${id}`, () => job[check]());
    await call(`toJSON of ${id}`, () => job.toJSON());
    await call(`asJSON of ${id}`, () => job.asJSON());
  }
  for (const method of ['getWaitingAsync', 'getActiveAsync', 'getCompletedAsync', 'getFailedAsync', 'getDelayedAsync', 'getPrioritized',
    'getWaitingChildren', 'getWaiting', 'getActive', 'getCompleted', 'getFailed', 'getDelayed', 'getJobs']) await ask(queue, method);
  const ids = (jobs) => jobs.map((job) => job.id).sort();
  await call('getJobsAsync', async () => ids(await queue.getJobsAsync()));
  await call('getJobsAsync, two states', async () => ids(await queue.getJobsAsync({ state: ['waiting', 'delayed'] })));
  await call('getJobsAsync, to the end', async () => ids(await queue.getJobsAsync({ start: 0, end: -1 })));
  await call('getJobsAsync, a page', async () => (await queue.getJobsAsync({ state: 'waiting', start: 1, end: 2 })).map((job) => job.id));
  await call('getJobsAsync, the last first', async () => (await queue.getJobsAsync({ state: 'waiting', asc: false })).map((job) => job.id));
  await call('getJobsAsync, the first first', async () => (await queue.getJobsAsync({ state: 'waiting', asc: true })).map((job) => job.id));
  await call('waitJobUntilFinished', () => queue.waitJobUntilFinished('c1-done', new EventEmitter(), 1_000));
  await call('waitJobUntilFinished of one that waits', () => queue.waitJobUntilFinished('c4-ready', new EventEmitter(), 50));
  for (const type of ['completed', 'failed'])
    await call(`getMetrics ${type}`, () => queue.getMetrics(type));
  await call('getWorkers', async () => (await queue.getWorkers()).length);
  await worker.close();
  await queue.close();
}

begin('priority:');
{
  const queue = open('c-priority');
  await queue.addBulk([0, 5, 5, 9].map((priority, n) => ({ name: 'p', data: { n }, opts: { jobId: `p-${n}`, priority } })));
  await written(queue, 4);
  await ask(queue, 'getCountsPerPriorityAsync');
  await ask(queue, 'getJobCountsAsync');
  await ask(queue, 'getPrioritizedCount');
  await call('getPrioritized', async () => (await queue.getPrioritized()).map((job) => job.id));
  await call('getWaitingAsync', async () => (await queue.getWaitingAsync()).map((job) => job.id));
  await again('p-1', queue, 'getJobState', 'p-1');
  await again('p-0', queue, 'changeJobPriority', 'p-0', { priority: 20 });
  await call('the priority after that', async () => (await queue.getJob('p-0')).priority);
  const worker = hand('c-priority');
  await call('the order', async () => {
    const seen = [];
    for (let n = 0; n < 4; n++) seen.push((await worker.getNextJob('t')).id);
    return seen;
  });
  await worker.close();
  await queue.close();
}

begin('control:');
{
  const queue = open('c-control');
  await queue.addBulk([1, 2, 3].map((n) => ({ name: 'j', data: { n }, opts: { jobId: `j-${n}` } })));
  if (has(queue, 'pauseAsync')) await ask(queue, 'pauseAsync');
  else queue.pause();
  await until('it is paused', () => queue.isPausedAsync());
  await ask(queue, 'isPaused');
  await ask(queue, 'getJobCountsAsync');
  const worker = hand('c-control');
  await call('nothing is handed out', () => worker.getNextJob('t').then((job) => job ?? null));
  if (has(queue, 'resumeAsync')) await ask(queue, 'resumeAsync');
  else queue.resume();
  await until('it is resumed', () => queue.isPausedAsync(), (paused) => !paused);
  await ask(queue, 'removeAsync', 'j-1');
  await again('of a removed one', queue, 'getJobState', 'j-1');
  await again('of one that is gone', queue, 'removeAsync', 'j-1');
  queue.remove('j-2');
  await until('remove', () => queue.getJobState('j-2'), (state) => state === 'unknown');
  if (has(queue, 'drainAsync')) await ask(queue, 'drainAsync');
  else queue.drain();
  await until('it is drained', () => queue.countAsync(), (count) => count === 0);
  await queue.add('x', {}, { jobId: 'o-1' });
  if (has(queue, 'obliterateAsync')) await ask(queue, 'obliterateAsync');
  else queue.obliterate();
  await until('it is obliterated', () => queue.countAsync(), (count) => count === 0);
  await worker.close();
  await queue.close();
}

begin('change:');
{
  const queue = open('c-change');
  await queue.addBulk([1, 2, 3, 4].map((n) => ({ name: 'j', data: { n }, opts: { jobId: `e-${n}`, delay: HOUR } })));
  await ask(queue, 'updateJobData', 'e-1', { changed: true });
  await call('the data and the name after that', async () => { const job = await queue.getJob('e-1'); return [job.name, job.data]; });
  await again('of an unknown job', queue, 'updateJobData', 'nobody', {});
  await ask(queue, 'changeJobDelay', 'e-1', 2 * HOUR);
  await call('the delay after that', async () => Math.round((await queue.getJob('e-1')).delay / 60_000));
  await ask(queue, 'promoteJob', 'e-1');
  await again('after a promotion', queue, 'getJobState', 'e-1');
  await again('of a job that waits', queue, 'promoteJob', 'e-1');
  await again('of one', queue, 'promoteJobs', { count: 1 });
  await ask(queue, 'promoteJobs');
  await call('the counts', async () => { const { waiting, delayed } = await queue.getJobCountsAsync(); return { waiting, delayed }; });
  await ask(queue, 'addJobLog', 'e-2', 'a line');
  await again('the second', queue, 'addJobLog', 'e-2', 'another');
  await again('the third', queue, 'addJobLog', 'e-2', 'last');
  await again('of an unknown job', queue, 'addJobLog', 'nobody', 'x');
  await ask(queue, 'getJobLogs', 'e-2');
  await again('a part', queue, 'getJobLogs', 'e-2', 1, 1);
  await again('of an unknown job', queue, 'getJobLogs', 'nobody');
  await again('but one', queue, 'clearJobLogs', 'e-2', 1);
  await again('after that', queue, 'getJobLogs', 'e-2');
  await ask(queue, 'clearJobLogs', 'e-2');
  await again('at the end', queue, 'getJobLogs', 'e-2');
  const worker = hand('c-change');
  const job = await worker.getNextJob('t');
  await again('of an active job', queue, 'updateJobProgress', job.id, 40);
  await call('the progress after that', async () => (await queue.getJob(job.id)).progress);
  await again('with an object', queue, 'updateJobProgress', job.id, { step: 2 });
  await again('of a job that waits', queue, 'updateJobProgress', 'e-4', 10);
  await again('with a wrong token', queue, 'extendJobLock', job.id, 'wrong', 1_000);
  await again('of an active job', queue, 'moveJobToDelayed', job.id, Date.now() + HOUR, job.token);
  await again('after moveJobToDelayed', queue, 'getJobState', job.id);
  await again('of a delayed job', queue, 'moveJobToWait', job.id);
  await again('after moveJobToWait', queue, 'getJobState', job.id);
  await again('of a job that waits', queue, 'moveJobToCompleted', 'e-4', 1);
  await again('of a job that waits', queue, 'moveJobToFailed', 'e-4', new Error('x'));
  await again('of an unknown job', queue, 'moveJobToWait', 'nobody');
  await worker.close();
  await queue.close();
}

begin('clean:');
{
  const queue = open('c-clean');
  const worker = hand('c-clean');
  await queue.addBulk([1, 2, 3].map((n) => ({ name: 'j', data: { n }, opts: { jobId: `cl-${n}` } })));
  for (let n = 0; n < 2; n++) await complete(queue, await take(worker), n);
  await until('two are done', () => queue.getCompletedCount(), (count) => count === 2);
  await call('cleanAsync, completed', async () => (await queue.cleanAsync(0, 1, 'completed')).length);
  await call('cleanAsync, completed, the rest', async () => (await queue.cleanAsync(0, 100, 'completed')).length);
  await call('cleanAsync, young ones', async () => (await queue.cleanAsync(HOUR, 100, 'waiting')).length);
  await call('cleanAsync, waiting', async () => (await queue.cleanAsync(0, 100, 'waiting')).length);
  await call('cleanAsync, an unknown state', () => queue.cleanAsync(0, 100, 'nonsense'));
  await again('an own', queue, 'clean', 0, 10);
  await ask(queue, 'getJobCountsAsync');
  await worker.close();
  await queue.close();
}

begin('retry:');
{
  const queue = open('c-retry');
  const worker = hand('c-retry');
  await queue.addBulk([1, 2, 3, 4].map((n) => ({ name: 'r', data: { n }, opts: { jobId: `r-${n}`, attempts: 1 } })));
  for (let n = 0; n < 4; n++) {
    const job = await take(worker);
    if (n < 2) await complete(queue, job, n);
    else await fail(queue, job, new Error(`boom ${n}`));
  }
  await until('two are done, two are dead', () => queue.getJobCountsAsync(), (each) => each.completed === 2 && each.failed === 2);
  await again('a dead one', queue, 'retryJob', 'r-3');
  await again('after retryJob', queue, 'getJobState', 'r-3');
  await again('of an unknown one', queue, 'retryJob', 'nobody');
  await again('one', queue, 'retryCompletedAsync', 'r-1');
  await again('after retryCompletedAsync', queue, 'getJobState', 'r-1');
  await again('an unknown one', queue, 'retryCompletedAsync', 'nobody');
  await ask(queue, 'retryCompletedAsync');
  await again('dead ones', queue, 'retryJobs', { state: 'failed' });
  await until('all wait again', () => queue.getJobCountsAsync(), (each) => each.failed === 0);
  await again('completed ones', queue, 'retryJobs', { state: 'completed', count: 1 });
  await call('what is left of a failure', async () => { const job = await queue.getJob('r-4'); return [job.attemptsMade, job.failedReason]; });
  await worker.close();
  await queue.close();
}

begin('dlq:');
{
  const queue = open('c-dlq');
  const worker = hand('c-dlq');
  const names = ['one', 'two', 'three', 'four'];
  for (const [n, name] of names.entries()) {
    await queue.add(name, { n }, { jobId: `q-${n}`, attempts: 1 });
    await fail(queue, await take(worker), n === 3 ? new bunqueue.UnrecoverableError('never') : new Error(`boom ${n}`));
  }
  await until('four are dead', () => queue.getFailedCount(), (count) => count === 4);
  await ask(queue, 'getDlq');
  const entries = await ask(queue, 'getDlqAsync');
  if (entries?.[0]) {
    await call('state of an entry', () => entries[0].job.getState());
    await call('toJSON of an entry', () => entries[0].job.toJSON());
    await call('log of an entry', () => entries[0].job.log('looked at'));
  }
  await again('by reason', queue, 'getDlqAsync', { reason: 'max_attempts_exceeded' });
  await again('by another reason', queue, 'getDlqAsync', { reason: 'stalled' });
  await again('a page', queue, 'getDlqAsync', { limit: 1, offset: 1 });
  await again('older than the first', queue, 'getDlqAsync', { olderThan: 1_000 });
  await again('newer than the first', queue, 'getDlqAsync', { newerThan: 1_000 });
  await again('that can be retried', queue, 'getDlqAsync', { retriable: true });
  await again('that are expired', queue, 'getDlqAsync', { expired: true });
  await again('two', queue, 'getDlqJobsAsync', 2);
  await ask(queue, 'getDlqJobsAsync');
  await ask(queue, 'getDlqStats');
  await ask(queue, 'getDlqStatsAsync');
  await ask(queue, 'removeDlqJob', 'q-0');
  await again('again', queue, 'removeDlqJob', 'q-0');
  await again('an unknown one', queue, 'removeDlqJobAsync', 'nobody');
  await again('a removed one', queue, 'getJobState', 'q-0');
  await again('one', queue, 'retryDlqAsync', 'q-1');
  await again('after retryDlqAsync', queue, 'getJobState', 'q-1');
  await again('an unknown one', queue, 'retryDlqAsync', 'nobody');
  await again('by reason', queue, 'retryDlqByFilterAsync', { reason: 'explicit_fail' });
  await again('by a reason that none has', queue, 'retryDlqByFilterAsync', { reason: 'timeout' });
  await again('a limited number', queue, 'retryDlqByFilterAsync', { limit: 1 });
  await ask(queue, 'getJobCountsAsync');
  await queue.add('last', {}, { jobId: 'q-last', attempts: 1, priority: 99 });
  await fail(queue, await take(worker), new Error('last'));
  await until('one is dead', () => queue.getFailedCount(), (count) => count > 0);
  if (has(queue, 'purgeDlqAsync')) await ask(queue, 'purgeDlqAsync');
  else queue.purgeDlq();
  await until('none is dead', () => queue.getFailedCount(), (count) => count === 0);
  await again('of an empty one', queue, 'getDlqStatsAsync');
  await ask(queue, 'getDlqConfigAsync');
  if (has(queue, 'setDlqConfigAsync')) await ask(queue, 'setDlqConfigAsync', { maxEntries: 7, autoRetry: true });
  else queue.setDlqConfig({ maxEntries: 7, autoRetry: true });
  await until('the changed rule', () => queue.getDlqConfigAsync(), (config) => config.maxEntries === 7);
  await ask(queue, 'getDlqConfig');
  await worker.close();
  await queue.close();
}

begin('limits:');
{
  const queue = open('c-limits');
  await ask(queue, 'getStallConfigAsync');
  queue.setStallConfig({ stallInterval: 12_000 });
  await until('the changed stall rule', () => queue.getStallConfigAsync(), (config) => config.stallInterval === 12_000);
  await again('at home', queue, 'getStallConfig');
  await ask(queue, 'getGlobalConcurrency');
  await ask(queue, 'getGlobalRateLimit');
  await ask(queue, 'getRateLimitTtl');
  await ask(queue, 'isMaxed');
  if (has(queue, 'setGlobalConcurrencyAsync')) await ask(queue, 'setGlobalConcurrencyAsync', 1);
  else queue.setGlobalConcurrency(1);
  await again('as set', queue, 'getGlobalConcurrency');
  await queue.addBulk([1, 2, 3].map((n) => ({ name: 'l', data: { n }, opts: { jobId: `l-${n}` } })));
  const worker = hand('c-limits');
  await call('the first', () => worker.getNextJob('t').then((job) => job?.id));
  await again('with one active', queue, 'isMaxed');
  await call('the second waits', () => worker.getNextJob('t').then((job) => job?.id ?? null));
  if (has(queue, 'removeGlobalConcurrencyAsync')) await ask(queue, 'removeGlobalConcurrencyAsync');
  else queue.removeGlobalConcurrency();
  await again('as removed', queue, 'getGlobalConcurrency');
  if (has(queue, 'setGlobalRateLimitAsync')) {
    await ask(queue, 'setGlobalRateLimitAsync', 1, HOUR);
    await again('as set', queue, 'getGlobalRateLimit');
    await call('one passes the rate limit', () => worker.getNextJob('t').then((job) => job?.id));
    await call('the next does not', () => worker.getNextJob('t').then((job) => job?.id ?? null));
    await call('getRateLimitTtl is long', async () => (await queue.getRateLimitTtl()) > HOUR / 2);
    await ask(queue, 'removeGlobalRateLimitAsync');
    await again('as removed', queue, 'getGlobalRateLimit');
    await call('now it passes', () => worker.getNextJob('t').then((job) => job?.id ?? null));
    await ask(queue, 'rateLimit', HOUR);
    await call('getRateLimitTtl of a limit that ends', async () => (await queue.getRateLimitTtl()) > HOUR / 2);
    await again('that ends', queue, 'getGlobalRateLimit');
    await again('of nothing', queue, 'rateLimit', 0);
  }
  await worker.close();
  await queue.close();
}

begin('deduplication:');
{
  const queue = open('c-dedup');
  await queue.add('d', { n: 1 }, { jobId: 'dd-1', deduplication: { id: 'once' } });
  await ask(queue, 'getDeduplicationJobId', 'once');
  await again('of an unknown key', queue, 'getDeduplicationJobId', 'never');
  await ask(queue, 'removeDeduplicationKey', 'once');
  await again('again', queue, 'removeDeduplicationKey', 'once');
  await again('after that', queue, 'getDeduplicationJobId', 'once');
  await call('another takes the key', () => queue.add('d', { n: 2 }, { jobId: 'dd-2', deduplication: { id: 'once' } }).then((job) => job.id));
  await again('of the other', queue, 'getDeduplicationJobId', 'once');
  const job = await queue.getJob('dd-2');
  if (has(job, 'removeDeduplicationKey')) {
    await call('removeDeduplicationKey of a job', () => job.removeDeduplicationKey());
    await call('removeDeduplicationKey of a job, again', () => job.removeDeduplicationKey());
  }
  await call('replaced', () => queue.add('d', { n: 3 }, { jobId: 'dd-3', deduplication: { id: 'r', replace: true } }).then((each) => each.id));
  await call('the counts', async () => (await queue.getJobCountsAsync()).waiting);
  await queue.close();
}

begin('schedulers:');
{
  const queue = open('c-schedulers');
  await ask(queue, 'upsertJobScheduler', 's-1', { every: HOUR }, { name: 'sweep', data: { deep: true }, opts: { attempts: 2 } });
  await again('with a pattern', queue, 'upsertJobScheduler', 's-2', { pattern: '0 3 * * *', limit: 4 }, { name: 'nightly', data: {} });
  await again('without a template', queue, 'upsertJobScheduler', 's-3', { every: 2 * HOUR });
  await ask(queue, 'getJobScheduler', 's-1');
  await again('with a pattern', queue, 'getJobScheduler', 's-2');
  await again('without a template', queue, 'getJobScheduler', 's-3');
  await again('unknown', queue, 'getJobScheduler', 'nobody');
  await call('getJobSchedulers', async () => (await queue.getJobSchedulers()).map(({ id, name }) => [id, name]).sort());
  await ask(queue, 'getJobSchedulersCount');
  await again('at once', queue, 'upsertJobScheduler', 's-4', { every: HOUR, immediately: true }, { name: 'now', data: { n: 1 }, opts: { priority: 3 } });
  const job = (await until('its job', async () => (await queue.getJobsAsync({ state: ['waiting', 'prioritized'] })).map((each) => ({ name: each.name, data: each.data, priority: each.priority })),
    (jobs) => jobs.length === 1));
  void job;
  await again('a wrong one', queue, 'upsertJobScheduler', 's-5', { pattern: 'nonsense' });
  await ask(queue, 'removeJobScheduler', 's-1');
  await again('again', queue, 'removeJobScheduler', 's-1');
  await call('getJobSchedulers after that', async () => (await queue.getJobSchedulers()).map(({ id }) => id).sort());
  await queue.close();
}

begin('a looked-up job:');
{
  const queue = open('c-job');
  await queue.add('j', { n: 1 }, { jobId: 'k-1', delay: HOUR });
  const job = await queue.getJob('k-1');
  const calls = [
    ['updateData', { n: 2 }], ['changeDelay', 3 * HOUR], ['changePriority', { priority: 8 }], ['log', 'a line'], ['clearLogs'], ['promote'],
    ['getState'], ['getChildrenValues'], ['getDependencies'], ['getDependenciesCount'], ['getFailedChildrenValues'],
    ['getIgnoredChildrenFailures'], ['removeChildDependency'], ['removeUnprocessedChildren'], ['removeDeduplicationKey'],
    ['updateProgress', 10], ['extendLock', 'wrong', 1_000], ['moveToDelayed', Date.now() + HOUR], ['moveToWait'], ['moveToCompleted', 1],
    ['moveToFailed', new Error('x')], ['waitUntilFinished', new EventEmitter(), 20], ['retry'], ['remove'], ['getState'],
  ];
  for (const [n, [method, ...args]] of calls.entries())
    if (has(job, method)) await call(`${n}. ${method}`, () => job[method](...args));
  await queue.add('j', { n: 1 }, { jobId: 'k-2' });
  const other = await queue.getJob('k-2');
  other.discard();
  await until('discard', () => queue.getJobState('k-2'), (state) => state === 'failed');
  await call('why it is dead', async () => (await queue.getJob('k-2')).failedReason);
  await queue.close();
}
record('the end', true);
await finish();
