// The simple mode: a queue and its worker in one object.
import { BRIEFLY_MS, begin, bunqueue, call, connection, finish, isOld, record, until } from './calls.js';
const { Bunqueue } = bunqueue;
const HOUR = 3_600_000;
const has = (thing, method) => typeof thing?.[method] === 'function';
const either = (app, method, ...args) => (has(app, `${method}Async`) ? app[`${method}Async`](...args) : app[method](...args));

begin('routes:');
{
  const seen = [];
  const app = new Bunqueue('s-routes', {
    connection,
    routes: { mail: async (job) => { seen.push(['mail', job.data]); return 'sent'; }, sms: async (job) => { seen.push(['sms', job.data]); return 'texted'; } },
  });
  app.use(async (job, next) => { seen.push(['before', job.name]); return next(); });
  app.trigger({ on: 'mail', create: 'sms', data: (result) => ({ after: result }) });
  const job = await app.add('mail', { to: 'ann' }, { jobId: 's-1' });
  record('add', [job.id, job.name, job.data]);
  await until('both have run', async () => seen.length, (count) => count === 4);
  record('what ran', seen);
  await until('the counts', () => either(app, 'getJobCounts'), (each) => each.completed === 2);
  await call('count', () => either(app, 'count'));
  await call('getJob', async () => { const found = await app.getJob('s-1'); return [found.name, found.data, found.returnvalue]; });
  await call('isRunning', () => app.isRunning());
  await call('isPaused', () => app.isPaused());
  await call('addBulk', async () => (await app.addBulk([{ name: 'sms', data: { n: 1 } }, { name: 'sms', data: { n: 2 } }])).map((each) => each.name));
  await until('the bulk has run', () => either(app, 'getJobCounts'), (each) => each.completed === 4);
  await call('getCircuitState', () => app.getCircuitState());
  await call('isCancelled', () => app.isCancelled('nobody'));
  await app.close();
  await call('isClosed', () => app.isClosed());
}

begin('retries:');
{
  let tries = 0;
  const app = new Bunqueue('s-retries', { connection, retry: { maxAttempts: 3, delay: 1, strategy: 'fixed' }, processor: async () => { if (++tries < 3) throw new Error('again'); return tries; } });
  await app.add('x', {}, { jobId: 's-retry' });
  await until('it is done', async () => (await app.getJob('s-retry'))?.returnvalue, (value) => value === 3, isOld ? BRIEFLY_MS : undefined);
  record('tries', tries);
  await app.close();
}

begin('dead letters:');
{
  const app = new Bunqueue('s-dead', { connection, processor: async () => { throw new Error('never'); }, dlq: { maxEntries: 5 } });
  await app.add('x', { n: 1 }, { jobId: 's-dead', attempts: 1 });
  await until('it is dead', () => either(app, 'getJobCounts'), (each) => each.failed === 1);
  if (has(app, 'getDlqAsync')) {
    await call('getDlqAsync', async () => (await app.getDlqAsync()).map(({ job, reason, error }) => [job.id, job.name, reason, error]));
    await call('getDlqStatsAsync', async () => (await app.getDlqStatsAsync()).total);
    await until('getDlqConfigAsync', () => app.getDlqConfigAsync(), (config) => config.maxEntries === 5);
    app.pause();
    await call('retryDlqAsync', () => app.retryDlqAsync('s-dead'));
    await until('it waits again', async () => (await app.getDlqStatsAsync()).total, (count) => count === 0);
    await call('purgeDlqAsync', () => app.purgeDlqAsync());
  }
  await app.close();
}

begin('crons:');
{
  const app = new Bunqueue('s-crons', { connection, processor: async () => 1 });
  await call('cron', async () => { const { next, ...rest } = await app.cron('s-nightly', '0 3 * * *', { deep: true }, { limit: 3 }); return rest; });
  await call('every', async () => { const { next, ...rest } = await app.every('s-hourly', HOUR, { n: 1 }); return rest; });
  await call('listCrons', async () => (await app.listCrons()).map(({ next, ...rest }) => rest).sort((a, b) => (a.id < b.id ? -1 : 1)));
  await call('removeCron', () => app.removeCron('s-nightly'));
  await call('listCrons after that', async () => (await app.listCrons()).length);
  await app.removeCron('s-hourly');
  await app.close();
}

begin('options:');
{
  const app = new Bunqueue('s-options', { connection, autorun: false, processor: async () => 1, deduplication: { ttl: HOUR }, ttl: { defaultTtl: HOUR }, defaultJobOptions: { attempts: 7 }, rateLimit: { max: 5, duration: 1_000 } });
  const one = await app.add('x', { same: true });
  const two = await app.add('x', { same: true });
  record('deduplicated', one.id === two.id);
  await call('attempts', async () => (await app.getJob(one.id)).opts.attempts);
  await call('setGlobalRateLimit', () => either(app, 'setGlobalRateLimit', 3, 5_000));
  await call('removeGlobalRateLimit', () => either(app, 'removeGlobalRateLimit'));
  await app.close();
}

begin('batch:');
{
  const sizes = [];
  const app = new Bunqueue('s-batch', { connection, batch: { size: 3, timeout: 5_000, processor: async (jobs) => { sizes.push(jobs.length); return jobs.map((job) => job.data.n * 10); } }, concurrency: 3 });
  for (const n of [1, 2, 3]) await app.add('b', { n }, { jobId: `s-b${n}` });
  await until('all are done', () => either(app, 'getJobCounts'), (each) => each.completed === 3);
  record('sizes', sizes);
  await call('a result', async () => (await app.getJob('s-b2')).returnvalue);
  await app.close();
}
await finish();
