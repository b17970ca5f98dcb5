// Every method of a queue about groups of jobs, and TrimEvents.
import { begin, bunqueue, call, connection, finish, until } from './calls.js';
import { connectRaw } from './raw.js';
const { Queue, Worker } = bunqueue;

const raw = await connectRaw();
const queue = new Queue('groups', { connection });
begin('groups:');
for (const [n, id] of ['a', 'a', 'b', undefined].entries()) {
  await queue.add(`job ${n}`, { n }, id ? { group: { id } } : {});
}
await queue.add('later', { n: 9 }, { group: { id: 'a' }, delay: 60_000 });
await call('getGroupJobsCount', () => queue.getGroupJobsCount('a'));
await call('getGroupJobsCount of nothing', () => queue.getGroupJobsCount('nothing'));
await call('getGroupsJobsCount', () => queue.getGroupsJobsCount());
await call('getGroupActiveCount', () => queue.getGroupActiveCount('a'));
await call('getGroupJobs', async () => (await queue.getGroupJobs('a')).map((job) => job.data.n).sort());
await call('getCountsPerPriorityForGroup', () => queue.getCountsPerPriorityForGroup('a'));
await call('a job of it', async () => (await raw.send('PULL', { queue: 'groups', owner: 'me', group: { concurrency: 1 } })).job.groupId);
await call('getGroupActiveCount then', () => queue.getGroupActiveCount('a'));
await call('getGroupConcurrency', () => queue.getGroupConcurrency('a'));
await call('setGroupConcurrency 1', () => queue.setGroupConcurrency('a', 1));
await call('setGroupConcurrency 3', () => queue.setGroupConcurrency('a', 3));
await call('getGroupConcurrency then', () => queue.getGroupConcurrency('a'));
await call('removeGroupConcurrency', () => queue.removeGroupConcurrency('a'));
await call('getGroupRateLimit', () => queue.getGroupRateLimit('a'));
await call('getGroupRateLimitTtl', () => queue.getGroupRateLimitTtl('a'));
await call('setGroupRateLimit', () => queue.setGroupRateLimit('a', 5, 1000));
await call('getGroupRateLimit then', () => queue.getGroupRateLimit('a'));
await call('removeGroupRateLimit', () => queue.removeGroupRateLimit('a'));
await call('isGroupPaused', () => queue.isGroupPaused('a'));
await call('pauseGroup', () => queue.pauseGroup('a'));
await call('isGroupPaused then', () => queue.isGroupPaused('a'));
await call('resumeGroup', () => queue.resumeGroup('a'));
await call('resumeGroup again', () => queue.resumeGroup('a'));
await call('a bad id', () => queue.getGroupJobsCount(''));
await call('GetGroupJobsCount without an id', () => raw.send('GetGroupJobsCount', { queue: 'groups' }));
await call('GetGroupJobsCount without a queue', () => raw.send('GetGroupJobsCount', { groupId: 'a' }));
await call('RateLimitGroup', () => raw.send('RateLimitGroup', { queue: 'groups', groupId: 'a', duration: 100 }));
begin('group options of a worker:');
{
  const limited = new Queue('groups-limited', { connection });
  await limited.addBulk([1, 2, 3, 4, 5].map((n) => ({ name: 'g', data: { n }, opts: { group: { id: 'g' } } })));
  await limited.addBulk([1, 2, 3].map((n) => ({ name: 'h', data: { n }, opts: { group: { id: 'h' } } })));
  const done = [];
  const worker = new Worker('groups-limited', async (job) => { done.push(job.name); }, { connection, concurrency: 4, group: { concurrency: 2, limit: { max: 2, duration: 3_600_000 } } });
  worker.on('error', () => {});
  await until('two of each group pass', async () => [...done].sort(), (list) => list.length >= 4);
  await limited.add('alone', {});
  await until('and one without a group', async () => [...done].sort(), (list) => list.includes('alone'));
  await call('the others wait', () => limited.getWaitingCount());
  await call('no limit is set', () => limited.getGroupRateLimit('g'));
  await call('but its window has begun', async () => (await limited.getGroupRateLimitTtl('g')) > 0);
  await worker.close();
  await limited.close();
}
begin('trimEvents:');
await call('all but 0', async () => typeof (await queue.trimEvents(0)));
await call('a bad number', async () => typeof (await queue.trimEvents(-1)));
await finish();
