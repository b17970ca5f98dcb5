// The two libraries for Redis that Node programs use, behind one function: open(name, options) -> { call, close }.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.NODE_MODULES}/`);

export async function open({ library, port, protocol, ca }) {
  const tls = ca ? { ca: readFileSync(ca), servername: 'localhost' } : undefined;
  if (library === 'ioredis') {
    const { Redis } = require('ioredis');
    const client = new Redis({ host: 'localhost', port, tls, protocol });
    client.on('error', () => {}); // it connects again
    return {
      call: (...words) => client.call(...words),
      bytes: (...words) => client.callBuffer(...words),
      subscribe: (topic) => client.subscribe(topic),
      drop: () => client.stream.destroy(),
      close: () => client.disconnect(),
    };
  }
  const { createClient, RESP_TYPES } = require('redis');
  const client = createClient({
    RESP: protocol,
    socket: tls ? { host: 'localhost', port, tls: true, ...tls } : { host: 'localhost', port },
  });
  client.on('error', () => {});
  await client.connect();
  const raw = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  const words = (given) => given.map((word) => (Buffer.isBuffer(word) ? word : String(word)));
  return {
    call: (...given) => client.sendCommand(words(given)),
    bytes: (...given) => raw.sendCommand(words(given)),
    subscribe: (topic) => client.subscribe(topic, () => {}),
    drop: () => client.destroy(),
    close: () => client.destroy(),
  };
}

export const message = (promise) => promise.catch((error) => `error: ${error.message}`);
