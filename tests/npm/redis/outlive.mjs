// A consumer whose server dies with a message in hand, and comes back: the library connects again on its own.
import { createInterface } from 'node:readline';
import { message, open } from './library.mjs';

const asked = JSON.parse(process.argv[2]);
const { topic } = asked;
const consumer = await open(asked);
await consumer.call('PUBLISH', topic, 'kept');
console.log(JSON.stringify(await consumer.call('RECEIVE', topic)));
await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next(); // until the server is back

async function again(...words) {
  // A command that was under way when the connection broke is refused by the library: only the next one is sent anew.
  for (;;) {
    const said = await message(consumer.call(...words));
    if (typeof said !== 'string' || !said.startsWith('error: ') || said.startsWith('error: ERR ')) return said;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const ack = await again('ACK');
const got = await again('RECEIVE', topic, 'WAIT', 30000);
console.log(JSON.stringify({ ack, got, done: await consumer.call('ACK'), left: await consumer.call('RECEIVE', topic) }));
consumer.close();
process.exit(0);
