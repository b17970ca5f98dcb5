// Four workers on one topic, some of which lose their connection with a message in hand. Every message is done once.
import { message, open } from './library.mjs';

const asked = JSON.parse(process.argv[2]);
const { topic, count } = asked;
const done = [];
let dropped = 0;

async function work(number) {
  let worker = await open(asked);
  while (done.length < count) {
    const got = await message(worker.call('RECEIVE', topic, 'WAIT', 200));
    if (got === null) continue;
    if (number === 0 && dropped < 5) {
      dropped += 1;
      worker.drop();
      worker.close();
      worker = await open(asked);
      continue;
    }
    const said = await message(worker.call('ACK'));
    if (said === 'OK') done.push(Number(got));
  }
  worker.close();
}

const producer = await open(asked);
await Promise.all([...Array(count).keys()].map((n) => producer.call('PUBLISH', topic, n)));
await Promise.all([0, 1, 2, 3].map(work));
const left = await producer.call('RECEIVE', topic);
producer.close();
console.log(JSON.stringify({ done: done.sort((a, b) => a - b), dropped, left }));
