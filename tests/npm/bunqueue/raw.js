// One TCP connection that sends commands as they are, for what no method of the client says.
import { createRequire } from 'node:module';
const { pack, unpack } = createRequire(`${process.env.BUNQUEUE_HOME}/`)('msgpackr');

export const connectRaw = async () => {
  let buffer = Buffer.alloc(0);
  let number = 0;
  const waiting = new Map();
  const others = [];
  const socket = await Bun.connect({
    hostname: '127.0.0.1',
    port: Number(process.env.TEST_TCP_PORT),
    socket: {
      data(_socket, data) {
        buffer = Buffer.concat([buffer, data]);
        while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32BE(0)) {
          const size = buffer.readUInt32BE(0);
          const message = unpack(buffer.subarray(4, 4 + size));
          buffer = buffer.subarray(4 + size);
          const answer = waiting.get(message.reqId);
          waiting.delete(message.reqId);
          if (answer) answer(message);
          else others.push(message);
        }
      },
    },
  });
  const send = (cmd, fields = {}) =>
    new Promise((answer) => {
      const reqId = String(++number);
      waiting.set(reqId, (message) => {
        delete message.reqId;
        delete message.code; // which only Penstock's errors have
        answer(message);
      });
      const body = pack({ cmd, ...fields, reqId });
      const head = Buffer.alloc(4);
      head.writeUInt32BE(body.length, 0);
      socket.write(Buffer.concat([head, body]));
    });
  return { send, others, end: () => socket.end() };
};
