// bunqueue's MCP server over stdio, in front of the server under test: every tool, resource and prompt.
import { begin, call, finish, record } from './calls.js';

const child = Bun.spawn([process.execPath, '--no-install', `${process.env.BUNQUEUE_HOME}/dist/mcp/index.js`], {
  stdin: 'pipe',
  stdout: 'pipe',
  stderr: 'ignore',
  env: { ...process.env, BUNQUEUE_MODE: 'tcp', BUNQUEUE_HOST: '127.0.0.1', BUNQUEUE_PORT: process.env.TEST_TCP_PORT },
});
const waiting = new Map();
const listen = async () => {
  const decoder = new TextDecoder();
  let text = '';
  for await (const chunk of child.stdout) {
    const lines = (text + decoder.decode(chunk, { stream: true })).split('\n');
    text = lines.pop();
    for (const line of lines.filter((each) => each.trim())) {
      const message = JSON.parse(line);
      waiting.get(message.id)?.(message);
    }
  }
};
listen();
let number = 0;
const write = (message) => {
  child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  child.stdin.flush();
};
const rpc = (method, params = {}) =>
  new Promise((answer, reject) => {
    const id = ++number;
    waiting.set(id, ({ result, error }) => (error ? reject(new Error(error.message)) : answer(result)));
    write({ id, method, params });
  });

// Figures of the process, of its disk and of time are not compared, only that they are there.
const FIGURES = /^(memory|uptime.*|activeConnections|sqliteSizeMb|heap.*|rss.*|external|arrayBuffers|version|startedAt|lastSeen|registeredAt|hostname|pid|duration|.*PerSec|.*Rate|avg.*|p\d+.*|nextRun|latency|throughput|nextRunIn.*|memoryUsage.*|.*Latency.*|.*Ms|total.*|createdAt|timestamp|nextExecution)$/;
const without = (value) => {
  if (Array.isArray(value)) return value.map(without);
  if (!value || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, FIGURES.test(key) ? '<figure>' : without(each)]));
};
const used = new Set();
const answer = async (name, args = {}) => {
  used.add(name);
  const { content, isError } = await rpc('tools/call', { name: `bunqueue_${name}`, arguments: args });
  const text = content.map((each) => each.text).join('\n');
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    value = text;
  }
  return { value, isError: isError === true };
};
const tool = async (label, name, args, look = without) => {
  let got;
  await call(label, async () => {
    got = await answer(name, args);
    return { isError: got.isError, answer: look(got.value) };
  });
  return got?.value;
};

begin('mcp:');
await call('initialize', async () => {
  const { serverInfo } = await rpc('initialize', { protocolVersion: '2024-11-05', capabilities: {}, clientInfo: { name: 'test', version: '1' } });
  return serverInfo.name;
});
write({ method: 'notifications/initialized' });
const { tools } = await rpc('tools/list');

begin('mcp jobs:');
const job = await tool('add_job', 'add_job', { queue: 'mcp', name: 'mail', data: { to: 'a' }, priority: 2, attempts: 1 });
const bulk = await tool('add_jobs_bulk', 'add_jobs_bulk', { queue: 'mcp', jobs: [{ name: 'b', data: { n: 1 } }, { name: 'c', data: { n: 2 }, delay: 60_000 }] });
const idOf = (value) => value?.jobId ?? value?.id ?? value;
const id = idOf(job);
const [second, delayed] = (bulk?.jobIds ?? bulk?.ids ?? bulk ?? []).map(idOf);
await tool('get_job', 'get_job', { jobId: id });
await tool('get_job of nothing', 'get_job', { jobId: 'nothing' });
await tool('get_job_state', 'get_job_state', { jobId: id });
await tool('get_job_result', 'get_job_result', { jobId: id });
await tool('get_progress', 'get_progress', { jobId: id });
await tool('get_job_by_custom_id', 'get_job_by_custom_id', { customId: 'nobody' });
await tool('update_job_data', 'update_job_data', { jobId: id, data: { to: 'b' } });
await tool('change_job_priority', 'change_job_priority', { jobId: id, priority: 9 });
await tool('change_delay', 'change_delay', { jobId: delayed, delay: 70_000 });
await tool('promote_job', 'promote_job', { jobId: delayed });
await tool('get_counts_per_priority', 'get_counts_per_priority', { queue: 'mcp' });
await tool('get_jobs', 'get_jobs', { queue: 'mcp', state: 'waiting', start: 0, end: 10 }, (jobs) => (jobs.jobs ?? jobs).map(({ name, data }) => ({ name, data })));
await tool('add_job_log', 'add_job_log', { jobId: id, message: 'a line', level: 'warn' });
await tool('get_job_logs', 'get_job_logs', { jobId: id });
await tool('clear_job_logs', 'clear_job_logs', { jobId: id });
const taken = await tool('pull_job', 'pull_job', { queue: 'mcp', timeoutMs: 0 }, (pulled) => ({ name: (pulled?.job ?? pulled)?.name, data: (pulled?.job ?? pulled)?.data }));
await tool('update_progress', 'update_progress', { jobId: id, progress: 40, message: 'half' });
await tool('get_progress again', 'get_progress', { jobId: id });
await tool('job_heartbeat', 'job_heartbeat', { jobId: id });
await tool('job_heartbeat_batch', 'job_heartbeat_batch', { jobIds: [id] });
await tool('extend_lock', 'extend_lock', { jobId: id, token: taken?.token ?? '', duration: 60_000 });
await tool('ack_job', 'ack_job', { jobId: id, result: { ok: 1 } });
await tool('get_job_result again', 'get_job_result', { jobId: id });
await tool('wait_for_job', 'wait_for_job', { jobId: id, timeoutMs: 1_000 });
await tool('pull_job_batch', 'pull_job_batch', { queue: 'mcp', count: 2 }, (pulled) => (pulled?.jobs ?? pulled ?? []).map(({ name, data }) => ({ name, data })));
await tool('ack_job_batch', 'ack_job_batch', { jobIds: [second] });
await tool('move_to_delayed', 'move_to_delayed', { jobId: delayed, delay: 60_000 });
await tool('discard_job', 'discard_job', { jobId: delayed });
const failing = idOf(await tool('add_job to fail', 'add_job', { queue: 'mcp', name: 'f', data: {}, attempts: 1 }));
await answer('pull_job', { queue: 'mcp' });
await tool('fail_job', 'fail_job', { jobId: failing, error: 'no luck' });
const gone = idOf(await tool('add_job to cancel', 'add_job', { queue: 'mcp', name: 'g', data: {} }));
await tool('cancel_job', 'cancel_job', { jobId: gone });
await tool('get_job_state of what is gone', 'get_job_state', { jobId: gone });

begin('mcp queues:');
await tool('list_queues', 'list_queues', {}, ({ queues }) => [...queues].sort());
await tool('count_jobs', 'count_jobs', { queue: 'mcp' });
await tool('get_job_counts', 'get_job_counts', { queue: 'mcp' });
await tool('get_queue_stats', 'get_queue_stats', { queue: 'mcp' });
await tool('get_per_queue_stats', 'get_per_queue_stats');
await tool('pause_queue', 'pause_queue', { queue: 'mcp' });
await tool('is_paused', 'is_paused', { queue: 'mcp' });
await tool('resume_queue', 'resume_queue', { queue: 'mcp' });
await tool('get_dlq', 'get_dlq', { queue: 'mcp', limit: 10 }, (dead) => (dead.jobs ?? dead.entries ?? dead).length);
await tool('retry_dlq', 'retry_dlq', { queue: 'mcp', jobId: failing });
await tool('purge_dlq', 'purge_dlq', { queue: 'mcp' });
await tool('retry_completed', 'retry_completed', { queue: 'mcp', jobId: id });
await tool('clean_queue', 'clean_queue', { queue: 'mcp', graceMs: 0, state: 'completed', limit: 10 });
await tool('drain_queue', 'drain_queue', { queue: 'mcp' });
await tool('set_rate_limit', 'set_rate_limit', { queue: 'mcp', limit: 100 });
await tool('clear_rate_limit', 'clear_rate_limit', { queue: 'mcp' });
await tool('set_concurrency', 'set_concurrency', { queue: 'mcp', limit: 5 });
await tool('clear_concurrency', 'clear_concurrency', { queue: 'mcp' });
await tool('obliterate_queue', 'obliterate_queue', { queue: 'mcp' });

begin('mcp flows:');
const flow = await tool('add_flow', 'add_flow', { name: 'p', queueName: 'mcp-a', data: { p: 1 }, children: [{ name: 'c', queueName: 'mcp-b', data: { c: 1 } }] });
const root = flow?.jobId ?? flow?.job?.id ?? flow?.id;
await tool('get_flow', 'get_flow', { jobId: root, queueName: 'mcp-a' });
await tool('get_children_values', 'get_children_values', { parentJobId: root });
await tool('add_flow_chain', 'add_flow_chain', { steps: [{ name: 'one', queueName: 'mcp-a', data: {} }, { name: 'two', queueName: 'mcp-b', data: {} }] });
await tool('add_flow_bulk_then', 'add_flow_bulk_then', {
  parallel: [{ name: 'x', queueName: 'mcp-a', data: {} }],
  final: { name: 'last', queueName: 'mcp-b', data: {} },
});

begin('mcp crons, webhooks and workers:');
await tool('add_cron', 'add_cron', { name: 'mcp-nightly', queue: 'mcp', data: { a: 1 }, schedule: '0 3 * * *' });
await tool('add_cron wrongly', 'add_cron', { name: 'mcp-bad', queue: 'mcp', data: {}, schedule: 'whenever' }, (value) => typeof value);
await tool('list_crons', 'list_crons');
await tool('get_cron', 'get_cron', { name: 'mcp-nightly' });
await tool('delete_cron', 'delete_cron', { name: 'mcp-nightly' });
const hook = await tool('add_webhook', 'add_webhook', { url: 'https://example.com/hook', events: ['job.completed'], queue: 'mcp' });
const hookId = hook?.webhookId ?? hook?.id;
await tool('list_webhooks', 'list_webhooks');
await tool('set_webhook_enabled', 'set_webhook_enabled', { id: hookId, enabled: false });
await tool('remove_webhook', 'remove_webhook', { id: hookId });
const worker = await tool('register_worker', 'register_worker', { name: 'w', queues: ['mcp'] });
await tool('worker_heartbeat', 'worker_heartbeat', { workerId: worker?.workerId ?? worker?.id });
await tool('list_workers', 'list_workers');
await tool('unregister_worker', 'unregister_worker', { workerId: worker?.workerId ?? worker?.id });
await tool('register_handler', 'register_handler', { queue: 'mcp-h', url: 'http://127.0.0.1:9/x', method: 'POST' });
await tool('list_handlers', 'list_handlers');
await tool('unregister_handler', 'unregister_handler', { queue: 'mcp-h' });

begin('mcp server:');
const kinds = (value) => (value && typeof value === 'object' && !Array.isArray(value) ? Object.keys(value).sort() : typeof value);
await tool('get_stats', 'get_stats', {}, kinds);
await tool('get_storage_status', 'get_storage_status');
await tool('get_memory_stats', 'get_memory_stats', {}, kinds);
await tool('get_prometheus_metrics', 'get_prometheus_metrics', {}, (text) => typeof text);
await tool('compact_memory', 'compact_memory', {}, kinds);
const { resources } = await rpc('resources/list');
for (const { uri } of resources) {
  await call(`resource ${uri}`, async () => {
    const { contents } = await rpc('resources/read', { uri });
    const value = JSON.parse(contents[0].text);
    return Array.isArray(value) ? 'an array' : kinds(value);
  });
}
for (const name of ['bunqueue_health_report', 'bunqueue_debug_queue', 'bunqueue_incident_response']) {
  await call(`prompt ${name}`, async () => (await rpc('prompts/get', { name, arguments: name.endsWith('report') ? {} : { queue: 'mcp' } })).messages.length);
}
record('tools that were not used', tools.map((each) => each.name.replace('bunqueue_', '')).filter((each) => !used.has(each)));
child.kill();
await finish();
