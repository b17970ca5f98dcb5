// A worker without locks: every job runs once, and is done.
import { begin, bunqueue, connection, finish, record, until } from './calls.js';
const { Queue, Worker } = bunqueue;

begin('without locks');
const queue = new Queue('no-locks', { connection });
const seen = [];
const worker = new Worker('no-locks', async (job) => (seen.push(job.data.n), job.data.n * 2), { connection, useLocks: false, concurrency: 4 });
await queue.addBulk([1, 2, 3, 4, 5].map((n) => ({ name: 'double', data: { n }, opts: { attempts: 3, backoff: 1 } })));
await until('all are done', () => queue.getJobCountsAsync(), (counts) => counts.completed === 5);
await worker.close();
record('each ran once', seen.sort());
await finish();
