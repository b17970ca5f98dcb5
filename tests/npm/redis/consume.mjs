// A consumer of a topic: every word about a message, waiting, bytes, and what SUBSCRIBE is answered with.
import { message, open } from './library.mjs';

const asked = JSON.parse(process.argv[2]);
const { topic } = asked;
const consumer = await open(asked);
const producer = await open(asked);
const seen = {};

for (const each of ['a', 'b', 'c']) await producer.call('PUBLISH', topic, each);
seen.first = await consumer.call('RECEIVE', topic, 'WAIT', 5000);
seen.ack = await consumer.call('ACK');
seen.second = await consumer.call('RECEIVE', topic);
seen.back = await consumer.call('BACK');
seen.third = await consumer.call('RECEIVE', topic, 'WITHDACKS');
seen.dack = await consumer.call('DACK', 0);
seen.again = await consumer.call('RECEIVE', topic, 'WITHDACKS');
seen.nack = await consumer.call('NACK');
// All of these are sent at once: each must get the answer that is its own.
seen.together = await Promise.all([
  consumer.call('RECEIVE', topic),
  consumer.call('PING'),
  consumer.call('RECEIVE', topic, 'ACK'),
  consumer.call('ACK'),
  consumer.call('RECEIVE', topic),
]);
const waiting = consumer.call('RECEIVE', topic, 'WAIT', 30000);
await producer.call('PUBLISH', topic, 'late');
seen.waited = await waiting;
seen.ended = await consumer.call('RECEIVE', topic, 'ACK', 'WAIT', 1);
seen.nothing = await message(consumer.call('ACK'));
await producer.call('PUBLISH', topic, Buffer.from([0, 255, 10, 13]));
seen.bytes = [...(await consumer.bytes('RECEIVE', topic))];
await consumer.call('ACK');
seen.subscribe = await message(consumer.subscribe(topic));
seen.alive = String(await consumer.call('ECHO', 'still here'));
consumer.close();
producer.close();
console.log(JSON.stringify(seen));
