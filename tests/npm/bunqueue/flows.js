// Every public method of FlowProducer and of the jobs that it returns.
import { BRIEFLY_MS, begin, bunqueue, call, connection, finish, isOld, record, until } from './calls.js';
import { connectRaw } from './raw.js';
const { FlowProducer, Queue, Worker } = bunqueue;

const raw = await connectRaw();
const flow = new FlowProducer({ connection });
const queues = ['flow-a', 'flow-b', 'flow-c'].map((name) => new Queue(name, { connection }));

// A node of a flow: what a user reads of it.
const seen = (node) =>
  node && {
    id: node.job.id,
    name: node.job.name,
    data: node.job.data,
    queueName: node.job.queueName,
    children: node.children?.map(seen),
  };
const take = async (queue, fields = {}) => raw.send('PULL', { queue, owner: 'me', timeout: 10_000, ...fields });
const complete = async (queue, result) => {
  const { job, token } = await take(queue);
  await raw.send('ACK', { id: job.id, token, result });
  return job;
};
const drop = async () => {
  for (const queue of queues) await raw.send('Obliterate', { queue: queue.name });
};
const tree = (extra = {}) => ({
  name: 'parent',
  queueName: 'flow-a',
  data: { p: 1 },
  children: [
    { name: 'left', queueName: 'flow-b', data: { c: 1 }, ...extra },
    { name: 'right', queueName: 'flow-c', data: { c: 2 }, children: [{ name: 'leaf', queueName: 'flow-b', data: { l: 1 } }] },
  ],
});

begin('flow:');
await call('waitUntilReady', () => flow.waitUntilReady());

begin('flow add:');
let added = await flow.add(tree());
record('nodes', seen(added));
record('states', await Promise.all([added.job, added.children[0].job, added.children[1].job].map((job) => job.getState())));
await call('getFlow', async () => seen(await flow.getFlow({ id: added.job.id, queueName: 'flow-a' })));
await call('getFlow depth 1', async () => seen(await flow.getFlow({ id: added.job.id, queueName: 'flow-a', depth: 1 })));
await call('getFlow maxChildren 1', async () => seen(await flow.getFlow({ id: added.job.id, queueName: 'flow-a', maxChildren: 1 })));
await call('getFlow in another queue', async () => seen(await flow.getFlow({ id: added.job.id, queueName: 'flow-b' })));
await call('getFlow of nothing', async () => seen(await flow.getFlow({ id: '00000000-0000-7000-8000-000000000000', queueName: 'flow-a' })));
if (!isOld) await call('getFlow depth -1', () => flow.getFlow({ id: added.job.id, queueName: 'flow-a', depth: -1 }));
record('nothing for the parent yet', (await raw.send('PULL', { queue: 'flow-a', owner: 'me' })).job);
record('the first child', (await complete('flow-b', { left: 1 })).data);
record('the leaf', (await complete('flow-b', { leaf: 1 })).data);
record('the second child', (await complete('flow-c', { right: 1 })).data);
await until('the parent is ready', () => added.job.getState(), (state) => state === 'waiting');
await call('getChildrenValues', () => added.job.getChildrenValues());
const { job: parent, token } = await take('flow-a');
record('the parent', parent.data);
await raw.send('ACK', { id: parent.id, token, result: 'done' });
await call('getState', () => added.job.getState());
await call('getParentResult', async () => (await raw.send('GetResult', { id: parent.id })).result);
if (!isOld) {
  await call('getParentResult by method', () => flow.getParentResult(parent.id));
  await call('getParentResults', () => flow.getParentResults([parent.id, added.children[0].job.id]));
}
await drop();

begin('flow job:');
added = await flow.add(tree());
const { job } = added;
for (const name of ['isWaiting', 'isActive', 'isDelayed', 'isCompleted', 'isFailed', 'isWaitingChildren']) {
  if (typeof job[name] === 'function') await call(name, () => job[name]());
}
if (!isOld) {
  await call('getDependencies', () => job.getDependencies());
  await call('getDependenciesCount', () => job.getDependenciesCount());
  await call('getFailedChildrenValues', () => job.getFailedChildrenValues());
  await call('getIgnoredChildrenFailures', () => job.getIgnoredChildrenFailures());
}
await call('log', () => job.log('a line'));
await call('clearLogs', () => job.clearLogs());
const child = added.children[0].job;
await call('updateData', () => child.updateData({ c: 7 }));
await call('changePriority', () => child.changePriority({ priority: 3 }));
await call('its data', async () => (await raw.send('GetJob', { id: child.id })).job.data);
await call('toJSON', () => { const { id, name, data, queueName } = child.toJSON(); return { id, name, data, queueName }; });
await call('removeChildDependency', () => child.removeChildDependency());
await call('removeUnprocessedChildren', () => job.removeUnprocessedChildren());
await until('the parent goes on without them', () => job.getState(), (state) => state === 'waiting', BRIEFLY_MS);
await call('updateProgress', async () => {
  const taken = await take('flow-a', { timeout: BRIEFLY_MS });
  await job.updateProgress(30);
  await job.extendLock(taken.token, 60_000);
  return (await raw.send('GetProgress', { id: job.id })).progress;
});
await call('moveToDelayed', () => job.moveToDelayed(Date.now() + 60_000));
await call('its state then', () => job.getState());
await call('changeDelay', () => job.changeDelay(50_000));
await call('promote', () => job.promote());
await call('its state at last', () => job.getState());
await call('remove', () => job.remove());
await call('its state after that', () => job.getState());
await drop();

begin('flow addBulk:');
const bulk = await flow.addBulk([tree(), { name: 'alone', queueName: 'flow-c', data: { alone: true } }]);
record('nodes', bulk.map(seen));
await call('nothing', () => flow.addBulk([]));
await drop();

begin('flow addChain:');
const step = (name, queueName, opts) => ({ name, queueName, data: { step: name }, ...(opts ? { opts } : {}) });
const chain = await flow.addChain([step('one', 'flow-a'), step('two', 'flow-b'), step('three', 'flow-a')]);
record('ids', chain);
record('first', (await complete('flow-a', 1)).data);
record('second', (await complete('flow-b', 2)).data);
record('third', (await complete('flow-a', 3)).data);
await call('nothing', () => flow.addChain([]));
await drop();

begin('flow addBulkThen:');
const then = await flow.addBulkThen([step('x', 'flow-a'), step('y', 'flow-b')], step('last', 'flow-c'));
record('ids', then);
await complete('flow-a', 'x');
await complete('flow-b', 'y');
record('last', (await complete('flow-c')).data);
await drop();

begin('flow addTree:');
const grown = await flow.addTree({ ...step('root', 'flow-a'), children: [step('twig', 'flow-b'), step('twig 2', 'flow-b')] });
record('ids', grown);
record('root', (await complete('flow-a', 'r')).data);
record('twigs', [(await complete('flow-b')).data, (await complete('flow-b')).data]);
await drop();

begin('flow options:');
await call('jobId', async () => seen(await flow.add({ ...tree({ opts: { jobId: 'left-1' } }), opts: { jobId: 'parent-1' } })));
await call('jobId again', () => flow.add({ ...tree(), opts: { jobId: 'parent-1' } }));
await call('counts: all or none', async () => Promise.all(queues.map(async (queue) => (await raw.send('Count', { queue: queue.name })).count)));
await drop();
await call('queuesOptions', async () => {
  const node = await flow.add(tree(), { queuesOptions: { 'flow-b': { attempts: 7, priority: 4 } } });
  const { job } = await raw.send('GetJob', { id: node.children[0].job.id });
  return { priority: job.priority, maxAttempts: job.maxAttempts };
});
await call('delay and attempts', async () => {
  const node = await flow.add({ name: 'd', queueName: 'flow-a', data: {}, opts: { delay: 60_000, attempts: 2, backoff: 5, timeout: 9_000, lifo: true } });
  const { job } = await raw.send('GetJob', { id: node.job.id });
  return { state: await node.job.getState(), maxAttempts: job.maxAttempts, backoff: job.backoff, timeout: job.timeout, lifo: job.lifo };
});
await drop();
for (const policy of ['failParentOnFailure', 'ignoreDependencyOnFailure', 'removeDependencyOnFailure', 'continueParentOnFailure', 'none']) {
  begin(`flow ${policy}:`);
  const opts = { attempts: 1, ...(policy === 'none' ? {} : { [policy]: true }) };
  const node = await flow.add({ name: 'p', queueName: 'flow-a', data: {}, children: [{ name: 'c', queueName: 'flow-b', data: {}, opts }] });
  const { job, token } = await take('flow-b');
  await raw.send('FAIL', { id: job.id, token, error: 'no luck' });
  const expected = { failParentOnFailure: 'failed', none: 'waiting-children' }[policy] ?? 'waiting';
  await until('the parent', () => node.job.getState(), (state) => state === expected);
  await call('GetFailedChildrenValues', () => raw.send('GetFailedChildrenValues', { id: node.job.id }));
  await call('GetIgnoredChildrenFailures', () => raw.send('GetIgnoredChildrenFailures', { id: node.job.id }));
  await drop();
}

begin('flow refused:');
const bad = { name: 'b', queueName: 'flow-a', data: {} };
for (const [label, node] of Object.entries({
  'no name': { ...bad, name: '' },
  'no queue': { ...bad, queueName: '' },
  'a bad queue': { ...bad, queueName: 'no spaces!' },
  'a colon': { ...bad, opts: { jobId: 'a:b' } },
  'data that is no object': { ...bad, data: [1] },
  'a reserved key': { ...bad, data: { __x: 1 } },
  repeat: { ...bad, opts: { repeat: { every: 1000 } } },
  deduplication: { ...bad, opts: { deduplication: { id: 'x' } } },
  'a policy without a parent': { ...bad, opts: { failParentOnFailure: true } },
})) {
  if (!isOld) await call(label, async () => seen(await flow.add(node)));
}
if (!isOld) {
  const input = { data: {} };
  for (const [label, jobs] of Object.entries({
    'no jobs': [],
    'the same id twice': [{ id: 'x', queue: 'flow-a', input }, { id: 'x', queue: 'flow-a', input }],
    'an unknown need': [{ id: 'x', queue: 'flow-a', input: { ...input, dependsOn: ['y'] } }],
    'itself': [{ id: 'x', queue: 'flow-a', input: { ...input, dependsOn: ['x'] } }],
    'a circle': [
      { id: 'x', queue: 'flow-a', input: { ...input, dependsOn: ['y'] } },
      { id: 'y', queue: 'flow-a', input: { ...input, dependsOn: ['x'] } },
    ],
    'a child that is not needed': [{ id: 'x', queue: 'flow-a', input: { ...input, childrenIds: ['y'] } }],
    'an unknown parent': [{ id: 'x', queue: 'flow-a', input: { ...input, parentId: 'y' } }],
    'two policies': [{ id: 'x', queue: 'flow-a', input: { ...input, failParentOnFailure: true, ignoreDependencyOnFailure: true } }],
  })) {
    await call(`PUSHF ${label}`, () => raw.send('PUSHF', { jobs }));
  }
  await call('PUSHF in any order', async () => {
    const { data } = await raw.send('PUSHF', {
      jobs: [
        { id: 'later', queue: 'flow-a', input: { ...input, dependsOn: ['sooner'] } },
        { id: 'sooner', queue: 'flow-b', input },
      ],
    });
    return data.jobs.map(({ id, queue, dependsOn }) => ({ id, queue, dependsOn }));
  });
  await call('PUSHF is all or none', async () => {
    const jobs = [{ id: 'fresh', queue: 'flow-c', input }, { id: 'later', queue: 'flow-a', input }];
    return [await raw.send('PUSHF', { jobs }), (await raw.send('GetState', { id: 'fresh' })).state];
  });
}
await drop();

if (!isOld) {
  begin('flow parked:');
  const mine = await queues[0].add('parked', { p: 2 });
  await call('moveToWaitingChildren of a waiting job', () => queues[0].moveJobToWaitingChildren(mine.id));
  const { job, token: held } = await take('flow-a');
  await call('moveToWaitingChildren with a wrong token', () => queues[0].moveJobToWaitingChildren(job.id, 'wrong'));
  await call('moveToWaitingChildren', () => queues[0].moveJobToWaitingChildren(job.id, held));
  await drop();
}

begin('flow with workers:');
const order = [];
const workers = ['flow-a', 'flow-b', 'flow-c'].map(
  (name) =>
    new Worker(
      name,
      async (job) => {
        order.push(job.data.p ? 'parent' : 'below');
        return job.data.p ? Object.values(await job.getChildrenValues()).length : 1;
      },
      { connection },
    ),
);
const run = await flow.add(tree());
await until('it is done', () => run.job.getState(), (state) => state === 'completed');
record('order', order);
await call('its result', async () => (await raw.send('GetResult', { id: run.job.id })).result);
if (!isOld) await call('waitUntilFinished', () => run.job.waitUntilFinished(null, 10_000));
for (const worker of workers) await worker.close();
await drop();
await call('disconnect', () => flow.disconnect());
await call('close', () => flow.close());
await finish();
