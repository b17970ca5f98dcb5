// bunqueue's own command line, each command in a process of its own.
import { connection, finish, isOld, lane } from './calls.js';

const program = [process.execPath, '--no-install', `${process.env.BUNQUEUE_HOME}/dist/cli/index.js`];
const env = { ...process.env, NO_COLOR: '1' };

const run = async (args, json) => {
  const all = [...program, '--host', connection.host, '--port', String(connection.port), ...(json ? ['--json'] : []), ...args];
  const process_ = Bun.spawn(all, { env, stdout: 'pipe', stderr: 'pipe' });
  const [out, errors, code] = await Promise.all([new Response(process_.stdout).text(), new Response(process_.stderr).text(), process_.exited]);
  return { out: out.trim(), errors: errors.trim(), code };
};

const withoutIds = (shown) => {
  if (!shown?.data?.workerId) return shown;
  const { workerId, ...rest } = shown.data;
  return { ...shown, data: rest };
};

// What is printed with --json is compared as values, everything else as text.
const area = (name) => {
  const { record } = lane(name);
  const cli = async (label, ...args) => {
    const { out, errors, code } = await run(args, true);
    let shown = out || errors;
    try {
      shown = JSON.parse(shown);
    } catch {
      // It is text.
    }
    record(label, { code, shown: withoutIds(shown) });
    return shown;
  };
  const text = async (label, ...args) => {
    const { out, errors, code } = await run(args, false);
    record(label, { code, shown: (out || errors).replace(/\x1b\[[0-9;]*m/g, '') });
  };
  return { cli, text, record };
};

// Jobs and queues: each call depends on those before it.
const jobs = async () => {
  let plain;
  {
    const { cli, text } = area('core:');
    plain = await cli('push', 'push', 'cli', '{"n":1}');
    await cli('push with options', 'push', 'cli', '{"n":2}', '--priority', '5', '--job-id', 'cli-2', '--max-attempts', '1', '--tags', 'a,b', '--timeout', '5000', '--ttl', '600000');
    await cli('push with a delay', 'push', 'cli', '{"n":3}', '--delay', '3600000', '--job-id', 'cli-3');
    await text('push, as text', 'push', 'cli', '{"n":4}', '--job-id', 'cli-4');
    await cli('push of no JSON', 'push', 'cli', 'nonsense{');
    await cli('push without data', 'push', 'cli');
    await cli('an unknown command', 'nonsense');
    await cli('job get', 'job', 'get', 'cli-2');
    await text('job get, as text', 'job', 'get', 'cli-3');
    await cli('job get of an unknown one', 'job', 'get', 'nobody');
    await cli('job state', 'job', 'state', 'cli-2');
    await cli('job state of an unknown one', 'job', 'state', 'nobody');
    await cli('job priority', 'job', 'priority', 'cli-4', '9');
    await cli('job update', 'job', 'update', 'cli-4', '{"n":44}');
    await cli('job log', 'job', 'log', 'cli-4', 'a line');
    await cli('job logs', 'job', 'logs', 'cli-4');
    await cli('job promote', 'job', 'promote', 'cli-3');
    await cli('job promote again', 'job', 'promote', 'cli-3');
  }
  {
    const { cli } = area('work:');
    await cli('pull', 'pull', 'cli');
    await cli('ack without a lock', 'ack', 'cli-4', '--result', '{"ok":true}');
    await cli('job result', 'job', 'result', 'cli-4');
    await cli('job wait', 'job', 'wait', 'cli-4', '--timeout', '1000');
    await cli('ack of an unknown one', 'ack', 'nobody');
    await cli('fail of an unknown one', 'fail', 'nobody', '--error', 'x');
    await cli('pull of an empty queue', 'pull', 'cli-empty');
    await cli('job discard', 'job', 'discard', 'cli-2');
    await cli('job cancel', 'job', 'cancel', plain.id ?? plain?.data?.id ?? 'nobody');
  }
  {
    const { cli } = area('queues:');
    for (const args of [['list'], ['count', 'cli'], ['pause', 'cli'], ['paused', 'cli'], ['resume', 'cli'], ['paused', 'cli'], ['jobs', 'cli', '--state', 'waiting'],
      ['jobs', 'cli', '--state', 'failed'], ['clean', 'cli', '--grace', '0', '--state', 'completed'], ['drain', 'cli'], ['obliterate', 'cli-empty']])
      await cli(`queue ${args.join(' ')}`, 'queue', ...args);
  }
  {
    const { cli } = area('limits:');
    for (const args of [['rate-limit', 'set', 'cli', '10'], ['rate-limit', 'clear', 'cli'], ['concurrency', 'set', 'cli', '3'], ['concurrency', 'clear', 'cli'],
      ['rate-limit', 'set', 'cli', 'many']]) await cli(args.join(' '), ...args);
  }
  {
    const { cli } = area('dlq:');
    for (const args of [['list', 'cli'], ['retry', 'cli', '--id', 'cli-2'], ['list', 'cli'], ['purge', 'cli']]) await cli(args.join(' '), 'dlq', ...args);
  }
};
const crons = async () => {
  const { cli, text } = area('crons:');
  await cli('add', 'cron', 'add', 'cli-cron', '-q', 'cli', '-d', '{"n":1}', '-e', '3600000');
  await cli('add with a pattern', 'cron', 'add', 'cli-nightly', '-q', 'cli', '-d', '{}', '-s', '0 3 * * *', '--priority', '2', '--max-limit', '5');
  await cli('add of nonsense', 'cron', 'add', 'cli-bad', '-q', 'cli', '-d', '{}', '-s', 'nonsense');
  await cli('list', 'cron', 'list');
  await text('list, as text', 'cron', 'list');
  await cli('delete', 'cron', 'delete', 'cli-cron');
  await cli('delete again', 'cron', 'delete', 'cli-cron');
  await cli('delete the other', 'cron', 'delete', 'cli-nightly');
};
const workers = async () => {
  const { cli } = area('workers:');
  const worker = await cli('register', 'worker', 'register', 'cli-worker', '-q', 'cli,other');
  await cli('list', 'worker', 'list');
  await cli('unregister', 'worker', 'unregister', worker?.workerId ?? worker?.data?.workerId ?? 'nobody');
  await cli('unregister of an unknown one', 'worker', 'unregister', 'nobody');
};
const webhooks = async () => {
  const { cli } = area('webhooks:');
  const hook = await cli('add', 'webhook', 'add', 'https://example.com/hook', '--events', 'job.completed,job.failed');
  await cli('list', 'webhook', 'list');
  await cli('remove', 'webhook', 'remove', hook?.webhookId ?? hook?.data?.webhookId ?? 'nobody');
  await cli('remove of an unknown one', 'webhook', 'remove', 'nobody');
  await cli('add of a private address', 'webhook', 'add', 'http://127.0.0.1:1/x', '--events', 'job.completed');
};
const monitoring = async () => {
  const { record } = area('monitoring:');
  // Numbers differ from run to run: which fields there are is compared.
  const fields = (value) =>
    value !== null && typeof value === 'object' ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, fields(value[key])])) : typeof value;
  for (const command of ['stats', 'health', 'ping', 'metrics']) {
    const { out, errors, code } = await run([command], true);
    let shown = out || errors;
    try {
      shown = fields(JSON.parse(shown));
    } catch {
      shown = typeof shown;
    }
    record(command, { code, shown });
  }
  if (!isOld) record('ping, as text', { code: (await run(['ping'], false)).code });
};

// A process for each call is slow to start: what does not depend on each other runs at the same time.
await Promise.all([jobs(), crons(), workers(), webhooks(), monitoring()]);
await finish();
